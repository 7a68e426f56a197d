{{/* The specification of a pod. */}}
{{- define "headrace.podSpec" -}}
# Longer than preStop, the drain, and the 12 s in which plugins flush and the log is written.
terminationGracePeriodSeconds: {{ add .Values.shutdown.preStopSeconds .Values.shutdown.drainTimeoutSeconds 15 }}
automountServiceAccountToken: false
# The variables of a Service called headrace would begin with HEADRACE_.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  # The group that can read the Secrets.
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- range $key := list "imagePullSecrets" "nodeSelector" "affinity" "tolerations" }}
{{- with get $.Values $key }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  {{- $selector := dict "labelSelector" (dict "matchLabels" (include "headrace.selectorLabels" $ | fromYaml)) }}
  - {{ toYaml (merge (deepCopy .) $selector) | nindent 4 | trim }}
  {{- end }}
{{- end }}
containers:
  - {{ include "headrace.container" . | nindent 4 | trim }}
volumes:
  - name: config
    configMap:
      name: {{ include "headrace.fullname" . }}
  {{- range (include "headrace.secretNames" . | fromJson).names }}
  - name: {{ include "headrace.volumeName" . }}
    secret:
      secretName: {{ . }}
      defaultMode: 0440
  {{- end }}
  {{- with .Values.extraPlugins.configMapName }}
  - name: plugins
    configMap:
      name: {{ . }}
  {{- end }}
  {{- with .Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* The volume of a Secret; a name of a Secret may have dots and 253 characters. */}}
{{- define "headrace.volumeName" -}}
{{- if or (contains "." .) (gt (len .) 56) -}}
secret-{{ . | sha256sum | trunc 16 }}
{{- else -}}
secret-{{ . }}
{{- end -}}
{{- end -}}

{{- define "headrace.container" -}}
name: headrace
image: {{ include "headrace.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
ports:
  - {name: kafka, containerPort: 9192}
  - {name: admin, containerPort: 9190}
  {{- range $name, $port := .Values.service.listenerPorts }}
  - {name: {{ $name }}, containerPort: {{ $port }}}
  {{- end }}
{{- if or .Values.env .Values.extraPlugins.configMapName }}
env:
  {{- if .Values.extraPlugins.configMapName }}
  - {name: PYTHONPATH, value: /etc/headrace-plugins}
  {{- end }}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
lifecycle:
  preStop:
    sleep:
      seconds: {{ .Values.shutdown.preStopSeconds }}
livenessProbe:
  httpGet: {path: /livez, port: admin, scheme: {{ include "headrace.adminScheme" . | upper }}}
  periodSeconds: 10
  timeoutSeconds: 5
  # A restart ends all connections, so only a proxy that has hung for a minute is restarted.
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: admin, scheme: {{ include "headrace.adminScheme" . | upper }}}
  periodSeconds: 5
  # Two brokers that do not answer may take upstream.connect_timeout = 2s each.
  timeoutSeconds: 5
  failureThreshold: 2
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
volumeMounts:
  - {name: config, mountPath: /etc/headrace, readOnly: true}
  {{- range (include "headrace.secretNames" . | fromJson).names }}
  - {name: {{ include "headrace.volumeName" . }}, mountPath: /run/secrets/{{ . }}, readOnly: true}
  {{- end }}
  {{- if .Values.extraPlugins.configMapName }}
  - {name: plugins, mountPath: /etc/headrace-plugins, readOnly: true}
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
