{{- define "siding.image" -}}
{{- if .root.Values.images.registry }}{{ trimSuffix "/" .root.Values.images.registry }}/{{ end }}{{ index .root.Values.images .name }}
{{- end }}

{{- define "siding.labels" -}}
app.kubernetes.io/name: siding
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "siding.selector" -}}
app.kubernetes.io/name: siding
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "siding.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end }}
