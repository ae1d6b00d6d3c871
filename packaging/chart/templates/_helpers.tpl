{{- define "headgate.labels" -}}
app.kubernetes.io/name: headgate
app.kubernetes.io/part-of: headgate
{{- end }}
