#!/usr/bin/env bash
# node.sh add nodeN: one more node beside node0 (N from 1 to 9), with a kubelet,
# a network and pods of its own; nothing when it is there.
# node.sh lose nodeN: as if its machine had lost its power. All of its processes
# end at once, pods too; nobody hears of it, and what is sent to it gets no
# answer. Its Node and its pods stay in the API until somebody deletes them.
# node.sh remove nodeN: the same, and the Node is deleted.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=parts.sh
. "$(dirname "${BASH_SOURCE[0]}")/parts.sh"
usage() { echo "usage: node.sh add|lose|remove nodeN (node1 to node9)" >&2; exit 2; }
[[ $# = 2 && $2 =~ ^node[1-9]$ ]] || usage
[ -e "$run/init.pid" ] || { echo "node.sh: the cluster is not up: run up.sh" >&2; exit 1; }
lock
in_first() { nsenter -t "$(cat "$run/init.pid")" -m -n -p -- "$@"; }
choose "$2"

lose() {
  lives || return 0
  # Its network first: the ends of its connections must not be told.
  in_first bash -euc "
    # A bridge without a port drops all that is sent to it.
    ip link show lost$number >/dev/null 2>&1 || ip link add lost$number type bridge
    ip link set lost$number arp off up
    ip route replace $ip/32 dev lost$number; ip route replace 10.244.$number.0/24 dev lost$number
    ip link del $node"
  local init; init=$(cat "$dir/init.pid")
  kill -9 "$init"
  for _ in $(seq 500); do readlink "/proc/$init/exe" >/dev/null || break; sleep 0.02; done
  for _ in $(seq 50); do
    find /sys/fs/cgroup/*/"$node_cg" /sys/fs/cgroup/"$node_cg" -depth -type d -exec rmdir {} + 2>/dev/null || true
    compgen -G "/sys/fs/cgroup/*/$node_cg" >/dev/null || break
    sleep 0.1
  done
  say "$node lost"
}

add() {
  if lives; then return; fi
  rm -rf "$dir"
  make_namespaces nsenter -t "$(cat "$run/init.pid")" -p --
  # A cable to the first node, which hands on what goes from node to node.
  local init; init=$(cat "$dir/init.pid")
  nsenter -t "$(cat "$run/init.pid")" -n -- bash -euc "
    ip link del lost$number 2>/dev/null || true
    ip link add $node type veth peer name eth0 netns $init; ip link set $node up
    ip route replace $ip/32 dev $node; ip route replace 10.244.$number.0/24 via $ip dev $node onlink"
  in_node bash -euc "
    ip addr add $ip/32 dev eth0; ip link set eth0 up; ip route add default via $first dev eth0 onlink"
  make_cgroups
  start_runtime
  start_agents "https://$first:6443"
  wait_for "kubelet$suffix" is_ready
  say "$node ready"
}

case $1 in
  add) add ;;
  lose) lose ;;
  remove) lose; kc delete node "$node" --ignore-not-found >&2 ;;
  *) usage ;;
esac
