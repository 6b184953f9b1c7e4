{{/*
What workloads.podTemplate brings, for the admission policy: a policy sees an RLJob and not the pods that it is merged into.
The same rules as the operator's (build/template_protection.py), which has the last word; here the mention of a thing is enough.
*/}}
{{/* Entries of a list without those that only take one away. */}}
{{- define "rljob.given" -}}
{{- $given := list -}}
{{- range . -}}{{- if not (hasKey . "$patch") -}}{{- $given = append $given . -}}{{- end -}}{{- end -}}
{{- toJson $given -}}
{{- end -}}

{{- define "rljob.brought" -}}
{{- $table := include "rljob.policyTable" . | fromJson -}}
{{- $own := concat $table.roleContainers $table.infrastructureContainers -}}
{{- $podsOwn := list "name" "emptyDir" "configMap" "secret" "downwardAPI" "projected" "ephemeral" -}}
{{- $judgedByEntry := list "containers" "initContainers" "volumes" "imagePullSecrets" "resourceClaims" -}}
{{- $defaults := list "nodeSelector" "affinity" "tolerations" "topologySpreadConstraints" "schedulerName" "schedulingGates" "terminationGracePeriodSeconds" -}}
{{- $template := .Values.workloads.podTemplate | default dict -}}
{{- $metadata := $template.metadata | default dict -}}
{{- $spec := $template.spec | default dict -}}
{{- $its := dict -}}
{{- range $key := list "containers" "initContainers" "volumes" "imagePullSecrets" -}}
  {{- $_ := set $its $key (include "rljob.given" (index $spec $key) | fromJsonArray) -}}
{{- end -}}
{{- $containers := list -}}
{{- $contexts := list -}}
{{- $paths := list -}}
{{- $mounted := list -}}
{{- range $its.containers -}}
  {{- if not (has .name $own) -}}
    {{- $containers = append $containers .name -}}
  {{- else -}}
    {{- if hasKey . "securityContext" -}}{{- $contexts = append $contexts .name -}}{{- end -}}
    {{- range include "rljob.given" .volumeMounts | fromJsonArray -}}
      {{- $paths = append $paths (printf "%s/" (clean .mountPath)) -}}
      {{- $mounted = append $mounted .name -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- range $its.initContainers -}}{{- $containers = append $containers .name -}}{{- end -}}
{{- $volumes := list -}}
{{- $usersFiles := false -}}
{{- range $its.volumes -}}
  {{- if not (and (has .name (list "tmp" "shm")) (hasKey . "emptyDir")) -}}{{- $volumes = append $volumes .name -}}{{- end -}}
  {{- if has .name $mounted -}}
    {{- range (keys .) -}}{{- if not (has . $podsOwn) -}}{{- $usersFiles = true -}}{{- end -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- $fields := list -}}
{{- range (keys $spec | sortAlpha) -}}
  {{- if not (has . (concat $judgedByEntry $defaults)) -}}{{- $fields = append $fields . -}}{{- end -}}
{{- end -}}
{{- if or (has "serviceAccount" $fields) (has "serviceAccountName" $fields) -}}
  {{- /* Two names of one field. */ -}}
  {{- $fields = concat $fields (list "serviceAccount" "serviceAccountName") -}}
{{- end -}}
{{- if or $contexts $usersFiles -}}{{- $fields = append $fields "securityContext" -}}{{- end -}}
{{- toJson (dict
  "containers" (uniq $containers) "contexts" (uniq $contexts) "paths" (uniq $paths) "volumes" (uniq $volumes)
  "fields" (uniq $fields) "usersFiles" $usersFiles
  "labels" (keys ($metadata.labels | default dict) | sortAlpha)
  "annotations" (keys ($metadata.annotations | default dict) | sortAlpha)) -}}
{{- end -}}

{{- define "rljob.broughtValidations" -}}
{{- $brought := include "rljob.brought" . | fromJson -}}
{{- $table := include "rljob.policyTable" . | fromJson -}}
{{- $own := concat $table.roleContainers $table.infrastructureContainers | toJson -}}
{{- $whose := "belongs to the administrator (workloads.podTemplate brings it), and no job changes it" -}}
{{- $templates := "roles.*.template and infrastructure.template" -}}
{{- with $brought.containers }}
- expression: >-
    variables.members.all(m, m.all(x, !(x.?name.orValue("") in {{ toJson . }})))
  message: >-
    {{ $templates }}: a container named {{ join " or " . }} {{ $whose }}. Give a container of yours another name.
- expression: >-
    variables.pods.all(p, p.all(k, k in ["containers", "initContainers", "volumes", "nodeSelector", "affinity",
    "tolerations", "topologySpreadConstraints", "schedulerName", "schedulingGates", "terminationGracePeriodSeconds",
    "nodeName", "priorityClassName", "priority", "preemptionPolicy", "imagePullSecrets", "resourceClaims",
    "ephemeralContainers"]))
  message: >-
    {{ $templates }}: every field of a pod but where it runs reaches into the container {{ join " and " . }}, which
    {{ $whose }}. Leave it out.
{{- end }}
{{- with $brought.volumes }}
- expression: >-
    variables.pods.all(p, p.?volumes.orValue([]).all(v, !(v.?name.orValue("") in {{ toJson . }}))) &&
    variables.members.all(m, m.all(x, (x.?volumeMounts.orValue([]) + x.?volumeDevices.orValue([])).all(v,
    !(v.?name.orValue("") in {{ toJson . }}))))
  message: >-
    {{ $templates }}: a volume named {{ join " or " . }} {{ $whose }}, nor mounts it. Give a volume of yours another name.
{{- end }}
{{- with $brought.paths }}
- expression: >-
    variables.members.all(m, m.all(x, !(x.?name.orValue("") in {{ $own }}) ||
    (x.?volumeMounts.orValue([]).map(v, v.mountPath) + x.?volumeDevices.orValue([]).map(v, v.devicePath) +
    ["terminationMessagePath"].filter(k, k in x && x[k] != null).map(k, x[k])).map(v, (v + "/").replace("//", "/"))
    .all(v, {{ toJson . }}.all(taken, !v.startsWith(taken) && !taken.startsWith(v)))))
  message: >-
    {{ $templates }}: what is mounted at {{ join " or " . }} {{ $whose }}. Choose another path.
{{- end }}
{{- with $brought.fields }}
- expression: >-
    variables.pods.all(p, {{ toJson . }}.all(k, !(k in p))){{ if has "priorityClassName" . }} &&
    dyn(object.spec).?scheduling.?priorityClassName.orValue(null) == null{{ end }}
  message: >-
    {{ $templates }}: {{ join " and " . }} {{ $whose }}. Leave it out.
{{- end }}
{{- with $brought.contexts }}
- expression: >-
    variables.members.all(m, m.all(x, !(x.?name.orValue("") in {{ toJson . }}) || !("securityContext" in x)))
  message: >-
    {{ $templates }}: the securityContext of {{ join " and " . }} {{ $whose }}. Leave it out.
{{- end }}
{{- if $brought.usersFiles }}
- expression: >-
    variables.members.all(m, m.all(x, !(x.?name.orValue("") in {{ $own }}) ||
    !("securityContext" in x) || x.securityContext == null || ["runAsUser", "runAsGroup"].all(k, !(k in
    x.securityContext))))
  message: >-
    {{ $templates }}: another user would read other files of the administrator's volumes (workloads.podTemplate). Leave
    runAsUser and runAsGroup out.
{{- end }}
{{- range $kind := list "labels" "annotations" }}
{{- with index $brought $kind }}
- expression: >-
    variables.templates.all(t, t.?metadata.orValue({}).?{{ $kind }}.orValue({}).all(k, !(k in {{ toJson . }})))
  message: >-
    {{ $templates }}: metadata.{{ $kind }} {{ join " and " . }} {{ $whose }}. Leave it out.
{{- end }}
{{- end }}
{{- end -}}
