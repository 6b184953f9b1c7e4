#!/usr/bin/env bash
# monitoring.sh: gives the running cluster the definitions of ServiceMonitor, PodMonitor and PrometheusRule, as the
# Prometheus operator's module has them (4 MB, fetched at the first call). They stay.
set -euo pipefail
root=${RLJOB_CLUSTER_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/rljob/cluster}
root=$(realpath -m "$root")
version=v0.85.0
module=$(cd / && go mod download -json github.com/prometheus-operator/prometheus-operator@$version)
folder=$(sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' <<<"$module")/example/prometheus-operator-crd
kc() { "$root/bin/kubectl" --kubeconfig "$run/admin.kubeconfig" "$@"; }
run=$root/run
for kind in podmonitors servicemonitors prometheusrules; do
  kc apply --server-side -f "$folder/monitoring.coreos.com_$kind.yaml" >&2
done
kc wait --for=condition=Established --timeout=30s crd/{podmonitors,servicemonitors,prometheusrules}.monitoring.coreos.com >&2
