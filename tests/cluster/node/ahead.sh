#!/usr/bin/env bash
# ahead.sh GROUP COMMAND...: runs a program of the control plane ahead of what
# shares the machine with it: in a cgroup of that name (make_control_group in
# parts.sh), and at a higher priority; plainly where neither is allowed.
# Without that it has one share of the machine, beside eight of all pods and one
# of every other session, and the API server gives up a request after 34 s.
set -euo pipefail
for c in /sys/fs/cgroup/cpu /sys/fs/cgroup; do
  [ ! -d "$c/$1" ] || { echo $$ >"$c/$1/cgroup.procs"; } 2>/dev/null || true
done
shift
exec nice -n -10 "$@"
