{{- define "rljob.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{/* Name of the Deployment and of all that belongs to it. Short enough for the suffixes of pods and roles. */}}
{{- define "rljob.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "rljob.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "rljob.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Names of cluster-wide objects carry the namespace: a release of the same name may exist in another one. */}}
{{- define "rljob.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "rljob.fullname" .) -}}
{{- end -}}

{{- define "rljob.selector" -}}
app.kubernetes.io/name: {{ include "rljob.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "rljob.release" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: rljob
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "rljob.labels" -}}
{{ include "rljob.selector" . }}
{{ include "rljob.release" . }}
{{- end -}}

{{/* What a pod of the operator's image needs to start, whatever the image is: shared with `helm test`. */}}
{{- define "rljob.placement" -}}
serviceAccountName: {{ include "rljob.serviceAccount" . }}
automountServiceAccountToken: true
enableServiceLinks: false
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "rljob.serviceAccount" -}}
{{- default (ternary (include "rljob.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "rljob.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The file that the operator reads: `rljob_operator.options`. Its checksum rolls the pods. */}}
{{- define "rljob.options" -}}
{{- include "rljob.check" . -}}
workloads:
  {{- toYaml .Values.workloads | nindent 2 }}
  operatorNamespace: {{ .Release.Namespace }}
  operatorLabels:
    {{- include "rljob.selector" . | nindent 4 }}
namespaces: {{ toJson .Values.namespaces }}
lease:
  name: {{ include "rljob.fullname" . }}
  namespace: {{ .Release.Namespace }}
  {{- toYaml .Values.lease | nindent 2 }}
coordinatorAccess: {{ .Values.coordinatorAccess }}
kueue:
  enabled: {{ .Values.kueue.enabled }}
concurrency: {{ .Values.concurrency }}
jobsPerNamespace: {{ .Values.jobsPerNamespace | toJson }}
healthPort: {{ .Values.ports.health }}
metricsPort: {{ .Values.ports.metrics }}
{{- end -}}

{{/* "true" where a Prometheus may read the operator's metrics. */}}
{{- define "rljob.isScraped" -}}
{{- if or (not .Values.networkPolicy.create) .Values.networkPolicy.scraperNamespace -}}
true
{{- end -}}
{{- end -}}

{{/* "true" where an object of the API is wanted: (dict "create" Auto|Always|Never "api" "group/version/Kind" "root" $). */}}
{{- define "rljob.wanted" -}}
{{- if or (eq .create "Always") (and (eq .create "Auto") (.root.Capabilities.APIVersions.Has .api) (include "rljob.isScraped" .root)) -}}
true
{{- end -}}
{{- end -}}

{{/* What no schema can say: values that must fit each other. */}}
{{- define "rljob.check" -}}
{{- $lease := .Values.lease -}}
{{- if not (and (gt (float64 $lease.durationSeconds) (float64 $lease.renewSeconds)) (gt (float64 $lease.renewSeconds) (float64 $lease.retrySeconds))) -}}
{{- fail (printf "lease: durationSeconds %v, renewSeconds %v and retrySeconds %v must fall in this order, else two replicas could lead at once. Set for example 30, 20 and 2." $lease.durationSeconds $lease.renewSeconds $lease.retrySeconds) -}}
{{- end -}}
{{- if eq (int .Values.ports.health) (int .Values.ports.metrics) -}}
{{- fail (printf "ports.metrics: %v is the port of ports.health. Set another one." .Values.ports.metrics) -}}
{{- end -}}
{{- end -}}
