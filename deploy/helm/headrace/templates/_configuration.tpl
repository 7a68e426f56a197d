{{/*
headrace.toml: what follows from values, and .Values.config. Both are tables; a key in both is an error.
*/}}
{{- define "headrace.configuration" -}}
{{- $ours := include "headrace.derivedConfiguration" . | fromJson -}}
{{- include "headrace.refuseKeysInBoth" (dict "path" "config" "ours" $ours "theirs" .Values.config) -}}
{{- if and (not .Values.admin.tls.secretName) (dig "admin" "tls" dict .Values.config) -}}
{{- fail "config.admin.tls: set the Secret with the admin server's certificate in admin.tls.secretName" -}}
{{- end -}}
{{- if eq "required" (dig "admin" "tls" "client_certificates" "" .Values.config | toString) -}}
{{- fail "config.admin.tls.client_certificates: with required, the kubelet's probes fail, since they show no certificate; expected none or requested" -}}
{{- end -}}
{{- if and (eq .Values.upstream.sasl.mechanism "OAUTHBEARER") (not (dig "upstream" "sasl" "options" "token_endpoint" "" .Values.config)) -}}
{{- fail "config.upstream.sasl.options.token_endpoint: set the URL that issues tokens, which upstream.sasl.mechanism=OAUTHBEARER needs" -}}
{{- end -}}
{{- range $name, $port := .Values.service.listenerPorts -}}
{{- $address := dig "listeners" $name "address" "" $.Values.config | toString -}}
{{- if not (hasSuffix (printf ":%d" (int $port)) $address) -}}
{{- fail (printf "service.listenerPorts.%s is %d, but config.listeners.%s.address is %q; expected an address with this port" $name (int $port) $name $address) -}}
{{- end -}}
{{- end -}}
{{- include "headrace.toml" (dict "path" "" "table" (mergeOverwrite $ours .Values.config)) | trim -}}
{{- end -}}

{{/* The tables that follow from values, as JSON. */}}
{{- define "headrace.derivedConfiguration" -}}
{{- $values := .Values -}}
{{- $domain := required "domain: set the domain of clients' names, such as kafka.example.com" $values.domain -}}
{{- $tls := $values.tls -}}
{{- $folder := printf "/run/secrets/%s" (required "tls.secretName: set the Secret with the certificate for clients" $tls.secretName) -}}
{{- $listenTls := dict
      "certificate_file" (printf "%s/tls.crt" $folder)
      "key_file" (printf "%s/tls.key" $folder)
      "client_certificates" $tls.clientCertificates -}}
{{- if ne $tls.clientCertificates "none" -}}
{{- $name := required "tls.clientCaSecretName: set the Secret with the authorities of clients' certificates, or tls.clientCertificates=none" $tls.clientCaSecretName -}}
{{- $_ := set $listenTls "client_ca_file" (printf "/run/secrets/%s/ca.crt" $name) -}}
{{- end -}}
{{- $listen := dict
      "address" (include "headrace.address" (list $values.bindAddress 9192))
      "advertised_host" (printf "bootstrap.%s" $domain)
      "advertised_port" (int $values.service.port)
      "broker_host" (printf "broker-$(node_id).%s" $domain)
      "node_ids" $values.nodeIds
      "tls" $listenTls -}}
{{- $admin := dict
      "listen" (include "headrace.address" (list $values.bindAddress 9190))
      "token_file" (printf "/run/secrets/%s/token" (required "admin.tokenSecretName: set the Secret with the admin server's token" $values.admin.tokenSecretName)) -}}
{{- $name := $values.admin.tls.secretName -}}
{{- if $name -}}
{{- $_ := set $admin "tls" (dict
      "certificate_file" (printf "/run/secrets/%s/tls.crt" $name)
      "key_file" (printf "/run/secrets/%s/tls.key" $name)) -}}
{{- end -}}
{{- $derived := dict
      "upstream" (include "headrace.upstream" . | fromJson)
      "listen" $listen
      "admin" $admin
      "log" (dict "format" "json")
      "shutdown" (dict "drain_timeout" (printf "%ds" (int $values.shutdown.drainTimeoutSeconds))) -}}
{{- with $values.extraPlugins.load -}}
{{- $_ := set $derived "plugins" (dict "load" .) -}}
{{- end -}}
{{- $derived | toJson -}}
{{- end -}}

{{/* The table [upstream], as JSON. */}}
{{- define "headrace.upstream" -}}
{{- $values := .Values.upstream -}}
{{- if not $values.bootstrapServers -}}
{{- fail "upstream.bootstrapServers: set the cluster's bootstrap brokers, such as {kafka-0.kafka:9093}" -}}
{{- end -}}
{{- $upstream := dict "bootstrap_servers" $values.bootstrapServers "connect_timeout" "2s" -}}
{{- if $values.tls.enabled -}}
{{- $tls := dict "enabled" true -}}
{{- with $values.tls.caSecretName -}}
{{- $_ := set $tls "ca_file" (printf "/run/secrets/%s/ca.crt" .) -}}
{{- end -}}
{{- with $values.tls.certificateSecretName -}}
{{- $_ := set $tls "certificate_file" (printf "/run/secrets/%s/tls.crt" .) -}}
{{- $_ := set $tls "key_file" (printf "/run/secrets/%s/tls.key" .) -}}
{{- end -}}
{{- $_ := set $upstream "tls" $tls -}}
{{- end -}}
{{- with $values.sasl.mechanism -}}
{{- $sasl := $values.sasl -}}
{{- $name := required "upstream.sasl.passwordSecretName: set the Secret with the password of upstream.sasl.user" $sasl.passwordSecretName -}}
{{- $_ := set $upstream "sasl" (dict
      "mechanism" .
      "user" (required "upstream.sasl.user: set the user of upstream.sasl.mechanism" $sasl.user)
      "password" (dict "file" (printf "/run/secrets/%s/password" $name))) -}}
{{- end -}}
{{- $upstream | toJson -}}
{{- end -}}

{{/* Fails if a key that is no table is in "ours" and in "theirs"; "log.format" alone may be replaced. */}}
{{- define "headrace.refuseKeysInBoth" -}}
{{- $context := . -}}
{{- range $key, $value := .theirs -}}
{{- $path := printf "%s.%s" $context.path $key -}}
{{- if and (hasKey $context.ours $key) (not (has $path (list "config.log.format" "config.upstream.connect_timeout"))) -}}
{{- $our := get $context.ours $key -}}
{{- if and (kindIs "map" $our) (kindIs "map" $value) -}}
{{- include "headrace.refuseKeysInBoth" (dict "path" $path "ours" $our "theirs" $value) -}}
{{- else -}}
{{- fail (printf "%s: the chart sets this key from other values; remove it from config" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A table as TOML: its own keys, then its tables and arrays of tables. "path" is its name, empty for the whole file. */}}
{{- define "headrace.toml" -}}
{{- $path := .path -}}
{{- $tables := dict -}}
{{- $arrays := dict -}}
{{- range $key, $value := .table }}
{{- if kindIs "map" $value }}
{{- $_ := set $tables $key $value }}
{{- else if and (kindIs "slice" $value) $value (kindIs "map" (first $value)) }}
{{- $_ := set $arrays $key $value }}
{{- else }}
{{ include "headrace.tomlKey" $key }} = {{ include "headrace.tomlValue" $value }}
{{- end }}
{{- end }}
{{- range $key, $value := $tables }}
{{- $name := printf "%s%s" $path (include "headrace.tomlKey" $key) }}

[{{ $name }}]
{{- include "headrace.toml" (dict "path" (printf "%s." $name) "table" $value) }}
{{- end }}
{{- range $key, $tables := $arrays }}
{{- range $table := $tables }}

[[{{ $path }}{{ include "headrace.tomlKey" $key }}]]
{{- range $key, $value := $table }}
{{ include "headrace.tomlKey" $key }} = {{ include "headrace.tomlValue" $value }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "headrace.tomlKey" -}}
{{- regexMatch "^[A-Za-z0-9_-]+$" . | ternary . (. | toRawJson) -}}
{{- end -}}

{{/* A value in one line: strings, numbers and truth values are written in TOML as in JSON. */}}
{{- define "headrace.tomlValue" -}}
{{- if kindIs "map" . -}}
{{- $pairs := list -}}
{{- range $key, $value := . -}}
{{- $pairs = append $pairs (printf "%s = %s" (include "headrace.tomlKey" $key) (include "headrace.tomlValue" $value)) -}}
{{- end -}}
{ {{- join ", " $pairs -}} }
{{- else if kindIs "slice" . -}}
{{- $items := list -}}
{{- range . -}}
{{- $items = append $items (include "headrace.tomlValue" .) -}}
{{- end -}}
[{{ join ", " $items }}]
{{- else -}}
{{- toRawJson . -}}
{{- end -}}
{{- end -}}
