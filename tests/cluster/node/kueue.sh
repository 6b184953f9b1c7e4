#!/usr/bin/env bash
# kueue.sh: adds Kueue to the running cluster: its CRDs, its webhooks and its
# controller, with RLJob as an external framework and a short
# waitForPodsReady. kueue.sh build only builds it, in minutes at first.
# Nothing is done twice.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=parts.sh
. "$(dirname "${BASH_SOURCE[0]}")/parts.sh"
cd "$here/kueue"
# A module of its own: `make cluster` is built without it.
key=$( { go env GOVERSION; cat go.mod go.sum; } | sha256sum | cut -c1-16)
bin=$root/kueue-$key certs=$run/kueue/metrics/certs config=$run/kueue.yaml
exec 8>"$root/kueue.lock"; flock 8 # another build of it is waited for
if [ ! -e "$bin" ]; then
  CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false -p=${RLJOB_BUILD_JOBS:-2}" \
    go build -ldflags "-s -w" -o "$bin.new" sigs.k8s.io/kueue/cmd/kueue >&2
  mv "$bin.new" "$bin"
fi
[ "${1:-}" != build ] || exit 0
[ ! -e "$run/pid/kueue" ] || exit 0
module=$(go list -m -f '{{.Dir}}' sigs.k8s.io/kueue)
choose node0

# The API server asks the webhooks on the node's loopback: Kueue is no pod here.
url=https://127.0.0.1:9443
kubeconfig dns https://127.0.0.1:6443 "$run/kueue.kubeconfig"
cert kueue /CN=kueue -addext "subjectAltName=IP:127.0.0.1"
mkdir -p "$certs" /etc/kueue # where it looks for the certificate of its metrics
cp "$pki/kueue.crt" "$certs/tls.crt"; cp "$pki/kueue.key" "$certs/tls.key"
in_node mount --bind "$run/kueue" /etc/kueue
cat >"$config" <<K
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
namespace: kueue-system
health: {healthProbeBindAddress: "127.0.0.1:9081"}
metrics: {bindAddress: "127.0.0.1:9445"}
webhook: {port: 9443, host: 127.0.0.1, certDir: $certs}
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
clientConnection: {qps: 200, burst: 400}
waitForPodsReady:
  timeout: ${RLJOB_KUEUE_READY:-3m}
  recoveryTimeout: ${RLJOB_KUEUE_READY:-3m}
  requeuingStrategy: {timestamp: Eviction, backoffBaseSeconds: 1, backoffMaxSeconds: 5}
integrations:
  frameworks: [batch/job, pod, deployment, statefulset]
  externalFrameworks: [RLJob.v1alpha1.rljob.dev]
K
python3 "$here/kueue/manifests.py" "$module/config/components" "$url" "$(base64 -w0 <"$pki/ca.crt")" >"$run/kueue-objects.json"
kc create namespace kueue-system --dry-run=client -o yaml | kc apply -f - >&2
kc apply --server-side -f "$run/kueue-objects.json" >&2
kc wait --for=condition=Established crd/workloads.kueue.x-k8s.io crd/clusterqueues.kueue.x-k8s.io --timeout=60s >&2
start kueue env "KUBECONFIG=$run/kueue.kubeconfig" "$bin" --config "$config" --zap-log-level=2 --feature-gates=VisibilityOnDemand=false 8>&-
wait_for kueue in_node curl -fs -m 2 http://127.0.0.1:9081/readyz
# What waits for the API server to see that the webhooks answer is nothing: they are asked at each request.
say kueue ready
