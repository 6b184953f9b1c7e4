package main

import (
	"flag"
	"fmt"
	"log"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	net "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelist "k8s.io/client-go/listers/core/v1"
	netlist "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	policyTable = "rljob-policies"
	settle      = 50 * time.Millisecond // changes come in groups
)

// policies enforces NetworkPolicies on what goes from pod to pod: it writes
// them all as one nftables table, anew at each change. What a node itself
// sends, such as a probe, is not forwarded and so not restricted, as the API
// wants it. IPv4 only.
type policies struct {
	pods       corelist.PodLister
	namespaces corelist.NamespaceLister
	policies   netlist.NetworkPolicyLister
	network    netip.Prefix
}

// enforce is the program: policies --kubeconfig FILE --pods CIDR.
func enforce(args []string) {
	flags := flag.NewFlagSet("policies", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "how to reach the API server")
	network := flags.String("pods", "", "the addresses of pods that are really there")
	must(flags.Parse(args))
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	must(err)

	watch := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0)
	p := policies{
		watch.Core().V1().Pods().Lister(),
		watch.Core().V1().Namespaces().Lister(),
		watch.Networking().V1().NetworkPolicies().Lister(),
		netip.MustParsePrefix(*network),
	}
	changed := make(chan struct{}, 1)
	note := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	for _, informer := range []cache.SharedIndexInformer{
		watch.Core().V1().Pods().Informer(),
		watch.Core().V1().Namespaces().Informer(),
		watch.Networking().V1().NetworkPolicies().Informer(),
	} {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: note, DeleteFunc: note, UpdateFunc: func(_, o any) { note(o) },
		})
		must(err)
	}
	watch.Start(nil)
	watch.WaitForCacheSync(nil)
	for last := ""; ; <-changed {
		time.Sleep(settle)
		if text := p.table(); text != last {
			if err := load(text); err != nil {
				log.Print(err)
				note(nil)
				continue
			}
			last = text
		}
	}
}

// load replaces the table in one transaction.
func load(text string) error {
	nft := exec.Command("nft", "-f", "-")
	nft.Stdin = strings.NewReader(text)
	if out, err := nft.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

// table is the whole ruleset: a chain for each isolated pod and direction,
// which returns what some policy allows and drops the rest.
func (p policies) table() string {
	all, err := p.policies.List(labels.Everything())
	must(err)
	slices.SortFunc(all, func(a, b *net.NetworkPolicy) int { return strings.Compare(string(a.UID), string(b.UID)) })
	var jumps, chains strings.Builder
	for _, pod := range p.running("", labels.Everything()) {
		for _, way := range []net.PolicyType{net.PolicyTypeEgress, net.PolicyTypeIngress} {
			rules, isolated := p.rules(pod, way, all)
			if !isolated {
				continue
			}
			side := map[net.PolicyType]string{net.PolicyTypeEgress: "saddr", net.PolicyTypeIngress: "daddr"}[way]
			chain := strings.ToLower(string(way)) + "-" + pod.Status.PodIP
			fmt.Fprintf(&jumps, "    ip %s %s jump %s\n", side, pod.Status.PodIP, chain)
			fmt.Fprintf(&chains, "  chain %s {\n%s    drop\n  }\n", chain, rules)
		}
	}
	return fmt.Sprintf(`table ip %[1]s {}
delete table ip %[1]s
table ip %[1]s {
%[3]s  chain forward {
    type filter hook forward priority filter; policy accept;
    ct state established,related accept
%[2]s  }
}
`, policyTable, jumps.String(), chains.String())
}

// rules is what the policies that select a pod allow in one direction, and
// whether there is such a policy.
func (p policies) rules(pod *core.Pod, way net.PolicyType, all []*net.NetworkPolicy) (rules string, isolated bool) {
	var text strings.Builder
	for _, policy := range all {
		if policy.Namespace != pod.Namespace || !selects(&policy.Spec.PodSelector, pod.Labels) || !speaksOf(policy, way) {
			continue
		}
		isolated = true
		if way == net.PolicyTypeIngress {
			for _, rule := range policy.Spec.Ingress {
				p.allow(&text, "saddr", pod.Namespace, rule.From, func(*core.Pod) []string { return ports(rule.Ports, pod) })
			}
		} else {
			for _, rule := range policy.Spec.Egress {
				p.allow(&text, "daddr", pod.Namespace, rule.To, func(to *core.Pod) []string { return ports(rule.Ports, to) })
			}
		}
	}
	return text.String(), isolated
}

// allow writes a line for each peer and port; no peer means everybody.
func (p policies) allow(text *strings.Builder, side, home string, peers []net.NetworkPolicyPeer, to func(*core.Pod) []string) {
	write := func(address string, pod *core.Pod) {
		for _, port := range to(pod) {
			fmt.Fprintf(text, "    %s%sreturn\n", address, port)
		}
	}
	if len(peers) == 0 {
		write("", nil)
	}
	for _, peer := range peers {
		if block := peer.IPBlock; block != nil {
			except := ""
			if len(block.Except) > 0 {
				except = fmt.Sprintf("ip %s != { %s } ", side, strings.Join(block.Except, ", "))
			}
			write(fmt.Sprintf("ip %s %s %s", side, block.CIDR, except), nil)
			continue
		}
		for _, namespace := range p.within(home, peer.NamespaceSelector) {
			for _, pod := range p.running(namespace, selector(peer.PodSelector)) {
				write(fmt.Sprintf("ip %s %s ", side, pod.Status.PodIP), pod)
			}
		}
	}
}

// within is the namespaces that a peer speaks of: without a selector, its own.
func (p policies) within(home string, wanted *meta.LabelSelector) (names []string) {
	if wanted == nil {
		return []string{home}
	}
	found, err := p.namespaces.List(selector(wanted))
	must(err)
	for _, namespace := range found {
		names = append(names, namespace.Name)
	}
	return names
}

// running is the pods that have an address of their own; "" is every namespace.
func (p policies) running(namespace string, wanted labels.Selector) (running []*core.Pod) {
	found, err := p.pods.Pods(namespace).List(wanted)
	must(err)
	for _, pod := range found {
		address, err := netip.ParseAddr(pod.Status.PodIP)
		over := pod.Status.Phase == core.PodSucceeded || pod.Status.Phase == core.PodFailed
		if err == nil && p.network.Contains(address) && !over && !pod.Spec.HostNetwork {
			running = append(running, pod)
		}
	}
	slices.SortFunc(running, func(a, b *core.Pod) int { return strings.Compare(a.Status.PodIP, b.Status.PodIP) })
	return running
}

// ports is the matches of a rule's ports; a name is looked up at the pod that
// listens, which is nil for what is no pod.
func ports(wanted []net.NetworkPolicyPort, listener *core.Pod) (matches []string) {
	if len(wanted) == 0 {
		return []string{""}
	}
	for _, port := range wanted {
		protocol := "tcp"
		if port.Protocol != nil {
			protocol = strings.ToLower(string(*port.Protocol))
		}
		switch {
		case port.Port == nil:
			matches = append(matches, fmt.Sprintf("meta l4proto %s ", protocol))
		case port.Port.Type == intstr.String:
			for _, number := range named(listener, port.Port.StrVal, protocol) {
				matches = append(matches, fmt.Sprintf("%s dport %d ", protocol, number))
			}
		case port.EndPort != nil:
			matches = append(matches, fmt.Sprintf("%s dport %d-%d ", protocol, port.Port.IntVal, *port.EndPort))
		default:
			matches = append(matches, fmt.Sprintf("%s dport %d ", protocol, port.Port.IntVal))
		}
	}
	return matches
}

func named(pod *core.Pod, name, protocol string) (numbers []int32) {
	if pod == nil {
		return nil
	}
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if port.Name == name && strings.EqualFold(string(port.Protocol), protocol) {
				numbers = append(numbers, port.ContainerPort)
			}
		}
	}
	return numbers
}

func speaksOf(policy *net.NetworkPolicy, way net.PolicyType) bool {
	for _, each := range policy.Spec.PolicyTypes { // the API server fills them in
		if each == way {
			return true
		}
	}
	return false
}

func selects(wanted *meta.LabelSelector, of map[string]string) bool {
	return selector(wanted).Matches(labels.Set(of))
}

// selector of a peer: without one, everything.
func selector(wanted *meta.LabelSelector) labels.Selector {
	if wanted == nil {
		return labels.Everything()
	}
	chosen, err := meta.LabelSelectorAsSelector(wanted)
	must(err) // the API server has checked it
	return chosen
}
