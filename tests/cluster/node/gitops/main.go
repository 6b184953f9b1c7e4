// Program gitops says how tools that know no RLJob read one: by the rules of kstatus (Flux, kpt), and by a health script
// in the interpreter of Argo CD. It reads one object as JSON from each line of stdin and writes one line for each.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

type verdict struct {
	Kstatus string `json:"kstatus"`
	Message string `json:"message"`
	Argo    string `json:"argo"`
	Said    string `json:"argoMessage"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gitops HEALTH.lua < OBJECTS.jsonl")
		os.Exit(64)
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		object := &unstructured.Unstructured{}
		check(object.UnmarshalJSON(lines.Bytes()))
		result, err := status.Compute(object)
		check(err)
		health, message := argo(os.Args[1], object.Object)
		line, err := json.Marshal(verdict{string(result.Status), result.Message, health, message})
		check(err)
		fmt.Println(string(line))
	}
	check(lines.Err())
}

// argo runs the script as Argo CD does: the global obj is the object, and what it returns has status and message.
func argo(script string, object map[string]any) (string, string) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString} {
		check(state.CallByParam(lua.P{Fn: state.NewFunction(open), Protect: true}, lua.LString(name)))
	}
	state.SetGlobal("obj", value(state, object))
	check(state.DoFile(script))
	found, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		check(fmt.Errorf("%s returns no table", script))
	}
	return found.RawGetString("status").String(), found.RawGetString("message").String()
}

func value(state *lua.LState, from any) lua.LValue {
	switch of := from.(type) {
	case map[string]any:
		table := state.NewTable()
		for key, each := range of {
			table.RawSetString(key, value(state, each))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, each := range of {
			table.Append(value(state, each))
		}
		return table
	case string:
		return lua.LString(of)
	case int64:
		return lua.LNumber(of)
	case float64:
		return lua.LNumber(of)
	case bool:
		return lua.LBool(of)
	}
	return lua.LNil
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
