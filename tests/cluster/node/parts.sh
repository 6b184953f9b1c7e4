# shellcheck shell=bash
# Sourced by up.sh and node.sh: where things lie, and what makes a node.
# A node is a mount, pid and network namespace with a containerd, a kubelet, a
# kube-proxy and the enforcer of policies. node0 is in the cluster's own
# namespaces, its files lie in run itself; nodeN is inside them, in run/nodeN.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${RLJOB_CLUSTER_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/rljob/cluster}
root=$(realpath -m "$root")
run=$root/run pki=$root/run/pki log=$root/run/log
cg=rljob-$(printf %s "$root" | sha256sum | cut -c1-8) # the name of its cgroups
control=$cg-control                                   # that of its control plane, which has no pods
first=10.200.0.1 pods=10.244.0.0/16                   # the first node's address; all nodes' pods
t0=${EPOCHREALTIME/[.,]/}
set -E # nothing fails without a word, in a function neither
trap 'echo "cluster: ${BASH_SOURCE[0]##*/}, line $LINENO: ended with $?: $BASH_COMMAND" >&2' ERR
say() { printf 'cluster: %s after %s s\n' "$*" "$(((${EPOCHREALTIME/[.,]/} - t0) / 100000))" | sed -E 's/([0-9]) s$/.\1 s/' >&2; }
kc() { "$root/bin/kubectl" --kubeconfig "$run/admin.kubeconfig" "$@"; }
lock() { # one at a time: whoever starts the cluster or adds a node is waited for
  exec 9>"$root/lock"
  flock -w 600 9 || { echo "${0##*/}: somebody has been at work on the cluster for 10 minutes, see: fuser $root/lock" >&2; exit 1; }
}
wait_for() { # wait_for NAME TEST... : up to 60 s, and while NAME runs; else the log's end and exit
  local end=$((SECONDS + 60))
  until "${@:2}" >/dev/null 2>&1; do
    if [ $SECONDS -ge $end ] || ! kill -0 "$(cat "$run/pid/$1")" 2>/dev/null; then echo "cluster: $1 did not become ready:" >&2; tail -5 "$log/$1.log" >&2; exit 1; fi
    sleep 0.1
  done
}

# --- keys -------------------------------------------------------------------
ec="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650"
ssl() { openssl "$@" 2>"$log/openssl.log" || { cat "$log/openssl.log" >&2; exit 1; }; }
cert() { # cert NAME SUBJECT [EXTRA...]
  # shellcheck disable=SC2086
  ssl req -x509 $ec -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -keyout "$pki/$1.key" -out "$pki/$1.crt" -subj "$2" \
    -addext basicConstraints=critical,CA:FALSE -addext extendedKeyUsage=serverAuth,clientAuth "${@:3}"
}
kubeconfig() { # kubeconfig NAME SERVER FILE
  cat >"$3" <<K
apiVersion: v1
kind: Config
current-context: rljob
clusters: [{name: rljob, cluster: {server: "$2", certificate-authority-data: $(base64 -w0 <"$pki/ca.crt")}}]
contexts: [{name: rljob, context: {cluster: rljob, user: $1}}]
users: [{name: $1, user: {client-certificate-data: $(base64 -w0 <"$pki/$1.crt"), client-key-data: $(base64 -w0 <"$pki/$1.key")}}]
K
  chmod 600 "$3"
}

# --- a node -----------------------------------------------------------------
choose() { # choose NODE: what the functions below speak of
  node=$1 number=${1#node}
  ip=10.200.0.$((number + 1)) suffix=-$node dir=$run/$node node_cg=$cg/$node images=$root/containerd-$node
  if [ "$node" = node0 ]; then suffix='' dir=$run node_cg=$cg images=$root/containerd; fi
}
in_node() { nsenter -t "$(cat "$dir/init.pid")" -m -n -p -- "$@"; }
start() { # start NAME COMMAND... : in the node, its output to a log
  printf '%q ' nsenter -t "$(cat "$dir/init.pid")" -m -n -p -- "${@:2}" >"$run/cmd/$1"
  "$here/daemon.sh" start "$1"
}
start_ahead() { # start_ahead NAME COMMAND... : the same, for the control plane
  printf '%q ' "$here/ahead.sh" "$control" nsenter -t "$(cat "$dir/init.pid")" -m -n -p -- "${@:2}" >"$run/cmd/$1"
  "$here/daemon.sh" start "$1"
}
child() { # child PID: its first child, waited for
  local found end=$((SECONDS + 60))
  until found=$(cat "/proc/$1/task/$1/children" 2>/dev/null) && [ -n "$found" ]; do
    if [ $SECONDS -ge $end ] || [ ! -e "/proc/$1" ]; then echo "cluster: process $1 has started nothing" >&2; exit 1; fi
    sleep 0.02
  done
  echo "${found%% *}"
}
lives() { # whether the node's first process runs
  [ -e "$dir/init.pid" ] && [ "$(readlink "/proc/$(cat "$dir/init.pid")/exe")" = "$(readlink -f "$root/bin/tiny")" ]
}
make_namespaces() { # make_namespaces [NSENTER...]: the node's, held by its first process; they end with it
  mkdir -p "$dir"/{cni,kubelet,logpods} "$images"
  mkdir -p /var/lib/kubelet /var/lib/cni /var/log/pods /var/log/containers /run/netns /run/containerd /etc/cni
  local tiny holder init end=$((SECONDS + 60))
  tiny=$(readlink -f "$root/bin/tiny")
  setsid "$@" unshare --fork --kill-child --mount --pid --net --mount-proc "$tiny" >/dev/null 2>&1 9>&- </dev/null &
  holder=$!; echo "$holder" >"$dir/holder.pid"
  [ $# = 0 ] || holder=$(child "$holder") # nsenter's child is unshare
  init=$(child "$holder")
  echo "$init" >"$dir/init.pid"
  until lives; do # before that its mounts are not yet its own
    if [ $SECONDS -ge $end ] || [ ! -e "/proc/$init" ]; then echo "cluster: process $init has not become $tiny" >&2; exit 1; fi
    sleep 0.02
  done
  in_node bash -euc "
    mount --make-rshared /
    for d in /run/netns /run/containerd /var/lib/cni; do mount -t tmpfs tmpfs \$d; done
    mount --bind '$dir/kubelet' /var/lib/kubelet
    mount --bind '$dir/logpods' /var/log/pods
    ip link set lo up
    echo 1 > /proc/sys/net/ipv4/ip_forward
  "
}
make_cgroups() { # v1: the kubelet keeps its pods under one group of each controller
  local c f
  for c in cpu cpuacct cpuset memory devices freezer blkio pids hugetlb perf_event systemd; do
    [ -d /sys/fs/cgroup/$c ] && mkdir -p "/sys/fs/cgroup/$c/$node_cg"
  done
  if [ -d "/sys/fs/cgroup/cpuset/$node_cg" ]; then
    for f in cpuset.cpus cpuset.mems; do cat /sys/fs/cgroup/cpuset/$f >"/sys/fs/cgroup/cpuset/$node_cg/$f"; done
  fi
  [ -f /sys/fs/cgroup/cgroup.controllers ] && mkdir -p "/sys/fs/cgroup/$node_cg"
  # All pods together would weigh as much as one process beside them: a machine that also runs tests would starve them.
  # Another node's are beside those of the first one, to which its kubelet gives a core's weight for each core.
  local weight=8192
  [ "$node" = node0 ] || weight=$((1024 * $(nproc)))
  if [ -f "/sys/fs/cgroup/cpu/$node_cg/cpu.shares" ]; then echo $weight >"/sys/fs/cgroup/cpu/$node_cg/cpu.shares"; fi
}
make_control_group() { # a real one has machines of its own: it gets eight times what all pods together do, if it has use for that
  if [ -d /sys/fs/cgroup/cpu ]; then
    mkdir -p "/sys/fs/cgroup/cpu/$control"
    echo 65536 >"/sys/fs/cgroup/cpu/$control/cpu.shares"
  elif [ -f /sys/fs/cgroup/cgroup.controllers ] && echo +cpu >/sys/fs/cgroup/cgroup.subtree_control; then
    mkdir -p "/sys/fs/cgroup/$control"
    echo 10000 >"/sys/fs/cgroup/$control/cpu.weight"
  fi 2>/dev/null || true # else by its priority alone
}
start_runtime() {
  cat >"$dir/containerd.toml" <<K
version = 2
root = "$images"
state = "/run/containerd/state"
oom_score = 0
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:1"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "$dir/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
K
  cat >"$dir/cni/10-bridge.conflist" <<K
{"cniVersion": "1.0.0", "name": "rljob", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "/var/lib/cni/ipam", "ranges": [[{"subnet": "10.244.$number.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}
K
  start "containerd$suffix" containerd --config "$dir/containerd.toml"
  wait_for "containerd$suffix" in_node ctr version
  # Images are kept from run to run; what is left of the last run's pods is not.
  if [ -n "$(ls -A "$images/io.containerd.grpc.v1.cri/sandboxes" 2>/dev/null)" ]; then
    in_node ctr -n k8s.io containers ls -q | in_node xargs -r ctr -n k8s.io containers rm >&2
    "$here/daemon.sh" kill "containerd$suffix"
    rm -rf "$images/io.containerd.grpc.v1.cri"
    "$here/daemon.sh" start "containerd$suffix"
    wait_for "containerd$suffix" in_node ctr version
  fi
  RLJOB_NODE=$node "$here/load.sh" --base
}
start_agents() { # start_agents SERVER: those that talk to the API server
  cert "kubelet$suffix" "/O=system:nodes/CN=system:node:$node" -addext "subjectAltName=DNS:$node,IP:$ip"
  kubeconfig "kubelet$suffix" "$1" "$dir/kubelet.kubeconfig"
  for n in proxy policies; do kubeconfig $n "$1" "$dir/$n.kubeconfig"; done
  echo "nameserver $first" >"$dir/resolv.conf"
  cat >"$dir/kubelet.yaml" <<K
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 0.0.0.0
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: "$pki/ca.crt"}}
authorization: {mode: Webhook}
tlsCertFile: "$pki/kubelet$suffix.crt"
tlsPrivateKeyFile: "$pki/kubelet$suffix.key"
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$node_cg
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
clusterDNS: ["$first"]
clusterDomain: cluster.local
resolvConf: "$dir/resolv.conf"
nodeLeaseDurationSeconds: 20
evictionHard: {memory.available: "100Mi", nodefs.available: "1%", nodefs.inodesFree: "1%", imagefs.available: "1%"}
imageGCHighThresholdPercent: 100
serializeImagePulls: false
featureGates: {KubeletCrashLoopBackOffMax: true}
crashLoopBackOff: {maxContainerRestartPeriod: 2s}
K
  start "kubelet$suffix" "$root/bin/kubelet" --config "$dir/kubelet.yaml" --kubeconfig "$dir/kubelet.kubeconfig" --hostname-override "$node" --node-ip "$ip"
  cat >"$dir/proxy.yaml" <<K
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
oomScoreAdj: 0
hostnameOverride: $node
clientConnection: {kubeconfig: "$dir/proxy.kubeconfig"}
clusterCIDR: $pods
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
nftables: {minSyncPeriod: 100ms}
K
  start "kube-proxy$suffix" "$root/bin/kube-proxy" --config "$dir/proxy.yaml"
  start "policies$suffix" "$root/bin/policies" --kubeconfig "$dir/policies.kubeconfig" --pods $pods
}
is_ready() { kc get node "$node" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}' | grep -qx True; }
