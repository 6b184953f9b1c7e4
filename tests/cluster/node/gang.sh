#!/usr/bin/env bash
# gang.sh: adds to the running cluster what places pods of a PodGroup together
# or not at all: the CRD, a second scheduler called `gang` (scheduler-plugins,
# the plugin Coscheduling), and the controller that writes a group's status.
# gang.sh crd adds the CRD alone, and builds nothing. gang.sh build only
# builds it, in minutes at first. Nothing is done twice.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${RLJOB_CLUSTER_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/rljob/cluster}
root=$(realpath -m "$root")
run=$root/run kubectl="$root/bin/kubectl --kubeconfig $root/run/admin.kubeconfig"
cd "$here/gang"
add_crd() {
  local crd
  crd=$(go list -m -f '{{.Dir}}' sigs.k8s.io/scheduler-plugins)/config/crd/bases/scheduling.x-k8s.io_podgroups.yaml
  $kubectl apply --server-side -f "$crd" >&2
  $kubectl wait --for=condition=Established crd/podgroups.scheduling.x-k8s.io --timeout=30s >&2
}
if [ "${1:-}" = crd ]; then
  go mod download sigs.k8s.io/scheduler-plugins >&2
  add_crd
  exit 0
fi
# A module of its own: `make cluster` is built without it.
key=$( { go env GOVERSION; cat go.mod go.sum main.go; } | sha256sum | cut -c1-16)
bin=$root/gang-$key
exec 8>"$root/gang.lock"; flock 8 # whoever else builds it is waited for
if [ ! -e "$bin" ]; then
  CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false -p=${RLJOB_BUILD_JOBS:-2}" go build -ldflags "-s -w" -o "$bin.new" . >&2
  mv "$bin.new" "$bin"
fi
[ "${1:-}" != build ] || exit 0
add_crd
[ ! -e "$run/pid/gang" ] || exit 0
# A pod that waits for its gang in vain is tried again when the queue is looked through, every 30 s. Pods that wait for
# less take turns with others of their gang, and never meet.
cat >"$run/gang.yaml" <<K
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: $run/dns.kubeconfig, qps: 500, burst: 1000}
podMaxBackoffSeconds: 2
profiles:
- schedulerName: gang
  plugins:
    multiPoint: {enabled: [{name: Coscheduling}]}
    queueSort: {enabled: [{name: Coscheduling}], disabled: [{name: "*"}]}
  pluginConfig:
  - name: Coscheduling
    args: {permitWaitingTimeSeconds: 35, podGroupBackoffSeconds: 2}
K
inside() { printf '%q ' nsenter -t "$(cat "$run/init.pid")" -m -n -p -- "$bin" "$@"; }
inside --config "$run/gang.yaml" --pod-max-in-unschedulable-pods-duration 10s --secure-port 0 --profiling=false >"$run/cmd/gang"
inside controller --kubeconfig "$run/dns.kubeconfig" >"$run/cmd/gang-controller"
"$here/daemon.sh" start gang 8>&-
"$here/daemon.sh" start gang-controller 8>&-
