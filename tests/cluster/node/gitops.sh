#!/usr/bin/env bash
# gitops.sh HEALTH.lua < OBJECTS.jsonl: how kstatus and a health script of
# Argo CD read each object. Built at the first use, in a minute or two;
# gitops.sh build only builds it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${RLJOB_CLUSTER_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/rljob/cluster}
root=$(realpath -m "$root")
mkdir -p "$root"
cd "$here/gitops"
key=$( { go env GOVERSION; cat go.mod go.sum main.go; } | sha256sum | cut -c1-16)
bin=$root/gitops-$key
exec 8>"$root/gitops.lock"; flock 8 # another build of it is waited for
if [ ! -e "$bin" ]; then
  CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false -p=${RLJOB_BUILD_JOBS:-2}" go build -ldflags "-s -w" -o "$bin.new" . >&2
  mv "$bin.new" "$bin"
fi
flock -u 8
[ "${1:-}" != build ] || exit 0
cd "$OLDPWD"
exec "$bin" "$@"
