#!/usr/bin/env bash
# prometheus.sh: prints the folder that has `prometheus` and `promtool`. Where this machine has none installed, the
# Debian package is fetched (19 MB) and unpacked beside the cluster's programs: installed, it would start a daemon.
set -euo pipefail
root=${RLJOB_CLUSTER_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/rljob/cluster}
root=$(realpath -m "$root")
out=$root/prometheus
if tool=$(command -v promtool) && command -v prometheus >/dev/null; then dirname "$(realpath "$tool")"; exit; fi
if [ ! -e "$out/promtool" ]; then
  mkdir -p "$root"
  exec 8>"$root/prometheus.lock"; flock 8 # whoever else fetches it is waited for
fi
if [ ! -e "$out/promtool" ]; then
  command -v apt-get >/dev/null || { echo "this machine lacks Prometheus: install prometheus and promtool, and run this again" >&2; exit 1; }
  new=$(mktemp -d "$root/prometheus.XXXXXX")
  trap 'rm -rf "$new"' EXIT
  chmod 755 "$new"
  # Lists may be missing or older than what the mirror has.
  (cd "$new" && { apt-get -qq -o Acquire::Retries=3 download prometheus || { apt-get -qq update && apt-get -qq download prometheus; }; }) >&2
  dpkg -x "$new"/prometheus_*.deb "$new/package"
  mkdir -p "$out"
  # promtool last: where it is, all is.
  for program in prometheus promtool; do mv "$new/package/usr/bin/$program" "$out/"; done
fi
echo "$out"
