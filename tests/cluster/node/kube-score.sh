#!/usr/bin/env bash
# kube-score.sh ARGUMENTS: static analysis of manifests (`kube-score score -`
# reads them from standard input); built at the first call (about 40 s).
set -euo pipefail
root=${RLJOB_CLUSTER_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/rljob/cluster}
root=$(realpath -m "$root")
version=v1.20.0
bin=$root/kube-score-$version
# A module of its own: it needs another minor version of Kubernetes' libraries.
# It is there as a whole or not at all, whoever else builds it and whenever a build is cut off.
if [ ! -e "$bin/kube-score" ]; then
  (cd / && CGO_ENABLED=0 GOBIN=$bin/$$ go install -trimpath -ldflags "-s -w" github.com/zegl/kube-score/cmd/kube-score@$version) >&2
  mv "$bin/$$/kube-score" "$bin/"; rmdir "$bin/$$"
fi
exec "$bin/kube-score" "$@"
