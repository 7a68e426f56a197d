{{- define "headrace.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "headrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 57 | trimSuffix "-" -}}
{{- else if contains (include "headrace.name" .) .Release.Name -}}
{{- .Release.Name | trunc 57 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "headrace.name" .) | trunc 57 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "headrace.selectorLabels" -}}
app.kubernetes.io/name: {{ include "headrace.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "headrace.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "headrace.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "headrace.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* An address to listen on: the context is a list of the host and the port. */}}
{{- define "headrace.address" -}}
{{- $host := index . 0 -}}
{{- printf "%s:%d" (contains ":" $host | ternary (printf "[%s]" $host) $host) (int (index . 1)) -}}
{{- end -}}

{{/* The scheme of the admin server. */}}
{{- define "headrace.adminScheme" -}}
{{- empty .Values.admin.tls.secretName | ternary "http" "https" -}}
{{- end -}}

{{/*
The names of all Secrets that are mounted, as a JSON object of one list. Each is mounted at /run/secrets/NAME.
*/}}
{{- define "headrace.secretNames" -}}
{{- $upstream := .Values.upstream -}}
{{- $names := list .Values.tls.secretName .Values.admin.tokenSecretName .Values.admin.tls.secretName -}}
{{- if ne .Values.tls.clientCertificates "none" -}}
{{- $names = append $names .Values.tls.clientCaSecretName -}}
{{- end -}}
{{- if $upstream.tls.enabled -}}
{{- $names = concat $names (list $upstream.tls.caSecretName $upstream.tls.certificateSecretName) -}}
{{- end -}}
{{- if $upstream.sasl.mechanism -}}
{{- $names = append $names $upstream.sasl.passwordSecretName -}}
{{- end -}}
{{- dict "names" (concat $names .Values.secrets | uniq | compact) | toJson -}}
{{- end -}}
