{{- define "penstock.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "penstock.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "penstock.name" .) .Values.serviceAccount.name }}
{{- else }}{{ default "default" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- define "penstock.tls" -}}{{ has .Values.listener.protocol (list "SSL" "SASL_SSL") | ternary "yes" "" }}{{- end }}
{{- define "penstock.sasl" -}}{{ hasPrefix "SASL" .Values.listener.protocol | ternary "yes" "" }}{{- end }}

{{/* What would start and then refuse to serve is refused here. */}}
{{- define "penstock.check" -}}
{{- if not .Values.store.url }}{{ fail "store.url is required: s3://bucket/prefix, gs://bucket/prefix or az://container/prefix." }}{{ end }}
{{- if and (include "penstock.tls" .) (not .Values.tls.secret) }}{{ fail (printf "listener.protocol=%s needs tls.secret, with a private key and certificates." .Values.listener.protocol) }}{{ end }}
{{- if not .Values.listener.insecure }}
{{- if eq .Values.listener.protocol "PLAINTEXT" }}{{ fail "listener.protocol=PLAINTEXT lets everybody do everything: choose SASL_SSL with tls.secret, or accept it with listener.insecure=true." }}{{ end }}
{{- if and (eq .Values.listener.protocol "SSL") (ne .Values.tls.clientAuth "required") }}{{ fail "listener.protocol=SSL lets everybody do everything unless tls.clientAuth=required; accept it with listener.insecure=true." }}{{ end }}
{{- if and (eq .Values.listener.protocol "SASL_PLAINTEXT") (or (has "PLAIN" .Values.sasl.mechanisms) (has "OAUTHBEARER" .Values.sasl.mechanisms)) }}{{ fail "listener.protocol=SASL_PLAINTEXT shows passwords or tokens to whoever listens on the way: choose SASL_SSL, or accept it with listener.insecure=true." }}{{ end }}
{{- end }}
{{- end }}

{{/* Settings that follow from values. */}}
{{- define "penstock.settings" -}}
{{- $own := dict "shutdown.drain.ms" (mul .Values.drainSeconds 1000) }}
{{- if .Values.listener.insecure }}{{ $_ := set $own "insecure.listeners.enable" "true" }}{{ end }}
{{- if include "penstock.tls" . }}
{{- $_ := set $own "ssl.keystore.type" "PEM" }}
{{- $_ := set $own "ssl.keystore.location" (printf "/etc/penstock/tls/%s" .Values.tls.keystoreKey) }}
{{- $_ := set $own "ssl.truststore.type" "PEM" }}
{{- $_ := set $own "ssl.truststore.location" (printf "/etc/penstock/tls/%s" .Values.tls.truststoreKey) }}
{{- $_ := set $own "ssl.client.auth" .Values.tls.clientAuth }}
{{- $_ := set $own "http.ssl.keystore.location" (printf "/etc/penstock/tls/%s" .Values.tls.keystoreKey) }}
{{- else if include "penstock.sasl" . }}
{{- /* Without a certificate the console could take no passwords. */}}
{{- $_ := set $own "console.enable" "false" }}
{{- end }}
{{- if include "penstock.sasl" . }}{{ $_ := set $own "sasl.enabled.mechanisms" (join "," .Values.sasl.mechanisms) }}{{ end }}
{{- if or (include "penstock.tls" .) (include "penstock.sasl" .) }}{{ $_ := set $own "security.inter.broker.protocol" .Values.listener.protocol }}{{ end }}
{{- mergeOverwrite $own .Values.settings | toYaml }}
{{- end }}

{{/* What the HTTP port speaks. */}}
{{- define "penstock.scheme" -}}{{ empty (get (include "penstock.settings" . | fromYaml) "http.ssl.keystore.location") | ternary "http" "https" }}{{- end }}
