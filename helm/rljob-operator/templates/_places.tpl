{{/*
CEL for the admission policy from the table of places (files/policy-table.yaml, which the operator's build shares), and what
no template may reach beyond its job: build/named_objects.py and build/reach.py have the same rules.
*/}}
{{- define "rljob.policyTable" -}}
{{- .Files.Get "files/policy-table.yaml" | fromYaml | toJson -}}
{{- end -}}

{{/* "leaf" of whatever is at "path" below "value"; true where nothing is, or another kind: (dict "value" "path" "leaf" "depth") */}}
{{- define "rljob.celAt" -}}
{{- $depth := .depth | default 0 | int -}}
{{- if not .path -}}
({{ .leaf | replace "VALUE" .value }})
{{- else if eq (first .path) "[]" -}}
{{- $entry := printf "e%d" $depth -}}
(type({{ .value }}) != list || {{ .value }}.all({{ $entry }}, {{ include "rljob.celAt" (dict "value" $entry "path" (rest .path) "leaf" .leaf "depth" (add1 $depth)) }}))
{{- else -}}
{{- $inner := printf "%s[%s]" .value (first .path | toJson) -}}
(type({{ .value }}) != map || !({{ first .path | toJson }} in {{ .value }}) || {{ include "rljob.celAt" (dict "value" $inner "path" (rest .path) "leaf" .leaf "depth" $depth) }})
{{- end -}}
{{- end -}}

{{/* JSON list of the names at "path" below "value", of entries that take nothing away: (dict "value" "path"). */}}
{{- define "rljob.namesAt" -}}
{{- $found := list -}}
{{- if not .path -}}
  {{- if kindIs "string" .value -}}{{- $found = list .value -}}{{- end -}}
{{- else if eq (first .path) "[]" -}}
  {{- range (kindIs "slice" .value | ternary .value list) -}}
    {{- if and (kindIs "map" .) (not (hasKey . "$patch")) -}}
      {{- $found = concat $found (include "rljob.namesAt" (dict "value" . "path" (rest $.path)) | fromJsonArray) -}}
    {{- end -}}
  {{- end -}}
{{- else if and (kindIs "map" .value) (hasKey .value (first .path)) -}}
  {{- $found = include "rljob.namesAt" (dict "value" (index .value (first .path)) "path" (rest .path)) | fromJsonArray -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/*
The first rule: what the others read as a list or an object is one, or null where that takes away what the operator sets.
The API server says what the first rule that fails says, and of an expression that cannot be evaluated only the expression.
*/}}
{{- define "rljob.readable" -}}
{{- $map := "type(VALUE) == map" -}}
{{- $list := "type(VALUE) == list" -}}
{{- $objects := "type(VALUE) == list && VALUE.all(x, type(x) == map)" -}}
{{- $mapOrNull := "VALUE == null || type(VALUE) == map" -}}
{{- $textOrNull := "VALUE == null || type(VALUE) == string" -}}
{{- $volume := list "spec" "volumes" "[]" -}}
{{- $term := list "spec" "affinity" "podAntiAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "[]" -}}
{{- $shapes := list (list $map) (list $map "metadata") (list $map "metadata" "labels") (list $map "metadata" "annotations") (list $map "spec") -}}
{{- range list "volumes" "imagePullSecrets" "resourceClaims" "topologySpreadConstraints" -}}
  {{- $shapes = append $shapes (list $objects "spec" .) -}}
{{- end -}}
{{- range list "projected" "csi" -}}{{- $shapes = append $shapes (concat (list $mapOrNull) $volume (list .)) -}}{{- end -}}
{{- $shapes = append $shapes (concat (list $objects) $volume (list "projected" "sources")) -}}
{{- $shapes = append $shapes (concat (list (printf "VALUE == null || %s" $list)) $term (list "namespaces")) -}}
{{- range list $term (list "spec" "topologySpreadConstraints" "[]") -}}
  {{- $shapes = append $shapes (concat (list $mapOrNull) . (list "labelSelector")) -}}
  {{- $shapes = append $shapes (concat (list $mapOrNull) . (list "labelSelector" "matchLabels")) -}}
{{- end -}}
{{- $contexts := list (list "spec" "securityContext") -}}
{{- range list "containers" "initContainers" -}}
  {{- $shapes = append $shapes (list $objects "spec" .) -}}
  {{- $container := list "spec" . "[]" -}}
  {{- $contexts = append $contexts (append $container "securityContext") -}}
  {{- range list "env" "ports" "volumeMounts" "volumeDevices" -}}
    {{- $shapes = append $shapes (concat (list $objects) $container (list .)) -}}
  {{- end -}}
  {{- $shapes = append $shapes (concat (list "\"mountPath\" in VALUE && type(VALUE.mountPath) == string") $container (list "volumeMounts" "[]")) -}}
  {{- $shapes = append $shapes (concat (list $textOrNull) $container (list "terminationMessagePath")) -}}
  {{- range list (list "livenessProbe") (list "readinessProbe") (list "startupProbe") (list "lifecycle" "postStart") (list "lifecycle" "preStop") -}}
    {{- $handler := concat $container . -}}
    {{- $shapes = append $shapes (concat (list $mapOrNull) $handler) -}}
    {{- range list "httpGet" "tcpSocket" -}}{{- $shapes = append $shapes (concat (list $mapOrNull) $handler (list .)) -}}{{- end -}}
  {{- end -}}
  {{- $shapes = append $shapes (concat (list $mapOrNull) $container (list "lifecycle")) -}}
{{- end -}}
{{- range $context := $contexts -}}
  {{- $shapes = append $shapes (concat (list $mapOrNull) $context) -}}
  {{- range list "capabilities" "seccompProfile" -}}{{- $shapes = append $shapes (concat (list $mapOrNull) $context (list .)) -}}{{- end -}}
  {{- $shapes = append $shapes (concat (list $list) $context (list "supplementalGroups")) -}}
  {{- range list "add" "drop" -}}{{- $shapes = append $shapes (concat (list $list) $context (list "capabilities" .)) -}}{{- end -}}
{{- end -}}
{{- $rules := list -}}
{{- range $shapes -}}{{- $rules = append $rules (include "rljob.celAt" (dict "value" "t" "path" (rest .) "leaf" (first .))) -}}{{- end -}}
- expression: >-
    variables.templates.all(t, {{ join " &&\n    " $rules }})
  message: >-
    roles.*.template and infrastructure.template: null, or another kind than a pod template has there, cannot be judged in
    metadata, labels, annotations, spec and what a pod and its containers have. Leave the field out.
{{- end -}}

{{- define "rljob.reachValidations" -}}
{{- $templates := "roles.*.template and infrastructure.template" -}}
{{- $reach := .Values.workloads.reach -}}
{{- $times := list (list "spec" "terminationGracePeriodSeconds") -}}
{{- range list "containers" "initContainers" -}}
  {{- $container := list "spec" . "[]" -}}
  {{- range list "livenessProbe" "readinessProbe" "startupProbe" -}}
    {{- $times = append $times (concat $container (list . "terminationGracePeriodSeconds")) -}}
  {{- end -}}
  {{- $times = append $times (concat $container (list "lifecycle" "preStop" "sleep" "seconds")) -}}
{{- end -}}
{{- $rules := list -}}
{{- $leaf := printf "VALUE == null || (type(VALUE) == int && VALUE <= %d)" (int $reach.maxGracePeriodSeconds) -}}
{{- range $times -}}{{- $rules = append $rules (include "rljob.celAt" (dict "value" "t" "path" . "leaf" $leaf)) -}}{{- end -}}
- expression: >-
    variables.templates.all(t, {{ join " &&\n    " $rules }})
  message: >-
    {{ $templates }}: terminationGracePeriodSeconds (that of probes, too) and preStop.sleep.seconds are whole numbers up to
    {{ int $reach.maxGracePeriodSeconds }} here (workloads.reach.maxGracePeriodSeconds): a node that is drained would wait so long. Give less.
{{- if eq $reach.foreignPods "Refused" }}
{{- $own := "VALUE.?labelSelector.?matchLabels[?\"rljob.dev/job\"].orValue(\"\") == object.metadata.name" }}
{{- $term := printf "type(VALUE) == map && %s && (VALUE.?namespaces.orValue(null) == null || VALUE.namespaces.size() == 0) && VALUE.?namespaceSelector.orValue(null) == null" $own }}
{{- $spread := printf "type(VALUE) != map || VALUE.?whenUnsatisfiable.orValue(\"\") == \"ScheduleAnyway\" || VALUE.?labelSelector.orValue(null) == null || %s" $own }}
- expression: >-
    variables.templates.all(t, {{ include "rljob.celAt" (dict "value" "t" "path" (list "spec" "affinity" "podAntiAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "[]") "leaf" $term) }})
  message: >-
    {{ $templates }}: a required podAntiAffinity keeps pods of others off the nodes of its own. Give each term
    labelSelector: {matchLabels: {rljob.dev/job: the job's name}} and no namespaces, or make it a preference.
- expression: >-
    variables.templates.all(t, {{ include "rljob.celAt" (dict "value" "t" "path" (list "spec" "topologySpreadConstraints" "[]") "leaf" $spread) }})
  message: >-
    {{ $templates }}: topologySpreadConstraints that are required count the job's own pods only. Give
    labelSelector: {matchLabels: {rljob.dev/job: the job's name}}, or whenUnsatisfiable: ScheduleAnyway.
{{- end }}
{{- range $kind, $refused := dict "labels" (prepend $reach.refusedLabels "rljob.dev/") "annotations" (prepend $reach.refusedAnnotations "rljob.dev/") }}
- expression: >-
    variables.templates.all(t, {{ include "rljob.celAt" (dict "value" "t" "path" (list "metadata" $kind) "leaf" (include "rljob.noKey" $refused)) }})
  message: >-
    {{ $templates }}: {{ $kind }} that begin with {{ join ", " $refused }} are not allowed here (workloads.reach): others choose
    pods by them. Choose another key.
{{- end }}
{{- end -}}

{{/* CEL: no key of the map VALUE begins with one of the patterns or, after `*`, contains it. */}}
{{- define "rljob.noKey" -}}
{{- $begin := list }}{{- $within := list }}
{{- range . }}
  {{- if hasPrefix "*" . }}{{- $within = append $within (trimPrefix "*" .) }}
  {{- else }}{{- $begin = append $begin . }}{{- end }}
{{- end -}}
type(VALUE) != map || VALUE.all(k, !{{ toJson $begin }}.exists(part, k.startsWith(part)) && !{{ toJson $within }}.exists(part, k.contains(part)))
{{- end -}}

{{/* A rule for each kind of objects of which the operator's options name some, and one for what no job names. */}}
{{- define "rljob.namedValidations" -}}
{{- $templates := "roles.*.template and infrastructure.template" -}}
{{- $table := include "rljob.policyTable" . | fromJson -}}
{{- $workloads := .Values.workloads -}}
{{- $reserved := dict "Secret" $workloads.reservedObjects.secrets "ConfigMap" $workloads.reservedObjects.configMaps "PersistentVolumeClaim" $workloads.reservedObjects.persistentVolumeClaims "ServiceAccount" $workloads.reservedObjects.serviceAccounts "ResourceClaim" $workloads.reservedObjects.resourceClaims -}}
{{- $pulled := $workloads.pullSecrets -}}
{{- $names := dict "Secret" $workloads.pullSecrets -}}
{{- range $table.podPlaces -}}
  {{- if has .access (list "Open" "Pulled") -}}
    {{- $found := include "rljob.namesAt" (dict "value" $workloads.podTemplate "path" .path) | fromJsonArray -}}
    {{- $_ := set $names .kind (concat (index $names .kind | default list) $found | uniq) -}}
    {{- if eq .access "Pulled" -}}{{- $pulled = concat $pulled $found -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- $kinds := list -}}
{{- range concat $table.specPlaces $table.podPlaces -}}
  {{- if has .access (list "Open" "Pulled" "Listed") -}}{{- $kinds = append $kinds .kind -}}{{- end -}}
{{- end -}}
{{- range $kind := uniq $kinds -}}
{{- $exact := index $names $kind | default list -}}
{{- $ends := list -}}
{{- range index $reserved $kind | default list -}}
  {{- if hasPrefix "*" . -}}{{- $ends = append $ends (trimPrefix "*" .) -}}{{- else -}}{{- $exact = append $exact . -}}{{- end -}}
{{- end -}}
{{- $exact = uniq $exact -}}
{{- $shown := $exact -}}
{{- range $ends -}}{{- $shown = append $shown (printf "*%s" .) -}}{{- end -}}
{{- if or $exact $ends -}}
{{- $rules := list -}}
{{- $fields := list -}}
{{- range $table.specPlaces -}}
  {{- if and (eq .kind $kind) (ne .access "Cluster") -}}
    {{- $fields = append $fields (join "." .path) -}}
    {{- $rules = append $rules (include "rljob.celAt" (dict "value" "variables.spec" "path" .path "leaf" (include "rljob.noName" (list $kind $exact $ends list)))) -}}
  {{- end -}}
{{- end -}}
{{- range $table.podPlaces -}}
  {{- if and (eq .kind $kind) (has .access (list "Open" "Pulled" "Listed")) -}}
    {{- $taken := eq .access "Pulled" | ternary (uniq $pulled) list -}}
    {{- $rules = append $rules (printf "variables.templates.all(t, %s)" (include "rljob.celAt" (dict "value" "t" "path" .path "leaf" (include "rljob.noName" (list $kind $exact $ends $taken))))) -}}
  {{- end -}}
{{- end }}
- expression: >-
    {{ join " &&\n    " $rules }}
  message: >-
    {{ $templates }}: the {{ $kind }} {{ join " or " $shown }}{{ with $fields }} (of {{ join ", " . }}, too){{ end }} is one
    that workloads.podTemplate, pullSecrets or reservedObjects names. Name another one.
{{- $made := include "rljob.ownNames" (list $table $kind) -}}
{{- if and $made $exact }}
- expression: >-
    [{{ $made }}].all(n, !(n in {{ toJson $exact }}))
  message: >-
    metadata.name: the {{ $kind }} that a job of this name makes is one that workloads.podTemplate, pullSecrets or reservedObjects
    names. Give the job another name.
{{- end }}
{{- end -}}
{{- end }}
{{- $never := list -}}
{{- $fields := list -}}
{{- range $table.podPlaces -}}
  {{- if eq .access "Refused" -}}
    {{- $never = append $never (include "rljob.celAt" (dict "value" "t" "path" .path "leaf" "VALUE == null")) -}}
    {{- $fields = append $fields (regexReplaceAll "^.*\\[\\]\\." (join "." .path) "") -}}
  {{- end -}}
{{- end }}
- expression: >-
    variables.templates.all(t, {{ join " &&\n    " $never }})
  message: >-
    {{ $templates }}: {{ join ", " (uniq $fields) }} name what belongs to the cluster or to a group of others, and are not allowed here. Leave them out.
{{- end -}}

{{/* CEL: VALUE is none of the names and has none of the ends, or is the job's own or one that is taken: (list $kind $exact $ends $taken). */}}
{{- define "rljob.noName" -}}
type(VALUE) != string || VALUE in variables.own[?{{ index . 0 | toJson }}].orValue([]) || {{ with index . 3 }}VALUE in {{ toJson . }} || {{ end }}(!(VALUE in {{ index . 1 | toJson }}) && !{{ index . 2 | toJson }}.exists(end, VALUE.endsWith(end)))
{{- end -}}

{{/* JSON list of the kinds of which a job makes objects. */}}
{{- define "rljob.ownKinds" -}}
{{- $kinds := list -}}
{{- range (include "rljob.policyTable" . | fromJson).ownNames -}}{{- $kinds = append $kinds .kind -}}{{- end -}}
{{- uniq $kinds | toJson -}}
{{- end -}}

{{/* CEL: the names of what a job makes of a kind, with commas: (list $table $kind). */}}
{{- define "rljob.ownNames" -}}
{{- $made := list -}}
{{- $kind := index . 1 -}}
{{- range (index . 0).ownNames -}}
  {{- if eq .kind $kind -}}{{- $made = append $made (printf "%s + object.metadata.name + %s" (toJson .before) (toJson .after)) -}}{{- end -}}
{{- end -}}
{{- join ", " $made -}}
{{- end -}}
