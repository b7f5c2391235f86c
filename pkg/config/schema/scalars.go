package schema

import (
	"net/netip"
	"reflect"

	"github.com/invopop/jsonschema"

	"github.com/orlop-os/orlop/pkg/config"
)

// addr6 matches the syntax of an IPv6 address.
const addr6 = `([0-9A-Fa-f:]*::[0-9A-Fa-f:.]*|([0-9A-Fa-f]{1,4}:){6,7}[0-9A-Fa-f.]+)`

// registry matches the syntax of a registry's host, with an optional port.
const registry = `((([a-z0-9-]+\.)+[a-z][a-z0-9-]*|localhost|[0-9]+(\.[0-9]+){3})(:[0-9]{1,5})?|[a-z][a-z0-9-]*:[0-9]{1,5}|\[` + addr6 + `\]:[0-9]{1,5})`

// scalars are the schemas of the types with UnmarshalText, by type. A test checks that the schemas
// and package config accept the same examples.
var scalars = map[reflect.Type]*jsonschema.Schema{
	reflect.TypeFor[config.Bytes](): {Type: "string", Pattern: `^[0-9]+(KiB|MiB|GiB|TiB)$`, Examples: []any{"256MiB"}},
	reflect.TypeFor[config.SizeRange](): {
		Type: "string", Pattern: `^ *(>=|<=) *[0-9]+(KiB|MiB|GiB|TiB)( *, *(>=|<=) *[0-9]+(KiB|MiB|GiB|TiB))? *$`, Examples: []any{">= 100GiB", ">= 100GiB, <= 2TiB"},
	},
	reflect.TypeFor[config.MilliCPU]():      {OneOf: []*jsonschema.Schema{{Type: "string", Pattern: `^[0-9]+m?$`}, {Type: "integer", Minimum: "0"}}, Examples: []any{"200m", "2"}},
	reflect.TypeFor[config.Threshold]():     {Type: "string", Pattern: `^([1-9][0-9]?%|0*[1-9][0-9]*(KiB|MiB|GiB|TiB))$`, Examples: []any{"10%", "100MiB"}},
	reflect.TypeFor[config.CPUSet]():        {OneOf: []*jsonschema.Schema{{Type: "string", Pattern: `^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$`}, {Type: "integer", Minimum: "0"}}, Examples: []any{"0-1,8"}},
	reflect.TypeFor[config.Duration]():      {Type: "string", Pattern: `^([0-9]+(h|m|s|ms))+$`, Examples: []any{"10s", "1m30s"}},
	reflect.TypeFor[config.MAC]():           {Type: "string", Pattern: `^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$`, Examples: []any{"52:54:00:12:34:56"}},
	reflect.TypeFor[config.PublicKey]():     {Type: "string", Pattern: `^[A-Za-z0-9+/]{43}=$`, Examples: []any{"AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}},
	reflect.TypeFor[config.AddrPort]():      {Type: "string", Pattern: `^([0-9]+(\.[0-9]+){3}|\[` + addr6 + `\]):[0-9]{1,5}$`, Examples: []any{"192.0.2.1:51820", "[2001:db8::1]:51820"}},
	reflect.TypeFor[config.Endpoint]():      {Type: "string", Pattern: `^https://[^/?#@]+:[0-9]{1,5}/?$`, Examples: []any{"https://10.0.0.5:6443"}},
	reflect.TypeFor[config.StoreEndpoint](): {Type: "string", Pattern: `^https://[^/?#@]+/?$`, Examples: []any{"https://s3.example.com", "https://10.0.0.5:9000"}},
	reflect.TypeFor[config.Recipient]():     {Type: "string", Pattern: `^age1[0-9a-z]+$`, Examples: []any{"age1suheuk8f2wayuxgxqwurclv5zatmqx468h3fna50ae82r0fw0a5q5x2er9"}},
	reflect.TypeFor[config.HostPort]():      {Type: "string", Pattern: `^([^/?#@:\[\]]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$`, Examples: []any{"logs.example.com:6514"}},
	reflect.TypeFor[config.ProxyURL]():      {Type: "string", Pattern: `^https?://[^/?#@]+:[0-9]{1,5}/?$`, Examples: []any{"http://proxy.example.com:3128", "https://10.0.0.5:3129"}},
	reflect.TypeFor[config.DirectHosts](): {
		Type: "string", Pattern: `^((\.?([A-Za-z0-9-]+\.)*([A-Za-z]|[0-9]+[A-Za-z-])[A-Za-z0-9-]*|[0-9]+(\.[0-9]+){3}|\[` + addr6 + `\])(:[0-9]{1,5})?|` + addr6 + `|([0-9]+(\.[0-9]+){3}|` + addr6 + `)/[0-9]{1,3})$`,
		Examples: []any{"example.com", ".example.com:8443", "10.0.0.7", "10.0.0.0/8", "2001:db8::/32"},
	},
	reflect.TypeFor[config.NameServer](): {
		Type: "string", Pattern: `^([0-9]+(\.[0-9]+){3}(:[0-9]{1,5})?|` + addr6 + `|\[` + addr6 + `\]:[0-9]{1,5})$`,
		Examples: []any{"10.0.0.2", "[2001:db8::2]:5353"},
	},
	reflect.TypeFor[config.Certificate](): {
		Type: "string", Pattern: `-----BEGIN CERTIFICATE-----`, Description: "One certificate in PEM.",
	},
	reflect.TypeFor[config.Bundle](): {
		Type: "string", Pattern: `-----BEGIN CERTIFICATE-----`, Description: "One certificate or several, in PEM.",
	},
	reflect.TypeFor[config.PrivateKey](): {
		Type: "string", Pattern: `-----BEGIN ([A-Z]+ )?PRIVATE KEY-----`, Description: "One private key in PEM. A secret.",
	},
	reflect.TypeFor[config.APIGroup]():   {Type: "string", Examples: []any{"apps", ""}},
	reflect.TypeFor[config.Manifest]():   {Type: "string", Description: "Objects of Kubernetes: one or more YAML documents. Handled as a secret.", Not: &jsonschema.Schema{Const: config.Redacted}},
	reflect.TypeFor[config.SigningKey](): {Type: "string", Pattern: `-----BEGIN PUBLIC KEY-----`, Examples: []any{"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA6kpsY+KcUgq+9VB7Ey7F+ZVHdq6+vnuSQh7qaRRG0iw=\n-----END PUBLIC KEY-----\n"}},
	reflect.TypeFor[config.Artifact](): {
		Type: "string", Pattern: `^` + registry + `/[a-z0-9._/-]*[a-z0-9]@sha256:[0-9a-f]{64}$`,
		Examples: []any{"registry.example.com/team/ingress@sha256:4f5d2e0c1b7a69885746352413021ffeeddccbbaa99887766554433221100ffe"},
	},
	reflect.TypeFor[config.RegistryPath](): {
		Type: "string", Pattern: `^` + registry + `(/[a-z0-9._/-]*[a-z0-9])?$`, Examples: []any{"registry.example.com:5000", "mirror.example.com/outside"},
	},
	reflect.TypeFor[config.RepositoryPattern](): {
		Type: "string", Pattern: `^(\*|` + registry + `(/[a-z0-9]([a-z0-9._-]*[a-z0-9])?)*/([a-z0-9]([a-z0-9._-]*[a-z0-9])?|\*))$`, Examples: []any{"registry.example.com/team/app", "registry.example.com/*", "*"},
	},
	reflect.TypeFor[config.ImageKey](): {Type: "string", Pattern: `-----BEGIN PUBLIC KEY-----`, Examples: []any{"-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEXCpFAokuNqgl7feJF2PZ5al9iQfb\nhrpNbVjefc5404FYwd5hsaMmwXyrALW2Gd2v7XgsHOPz2n5CEAw0aNyA7A==\n-----END PUBLIC KEY-----\n"}},
	reflect.TypeFor[config.RegistryName](): {
		Type: "string", Pattern: `^(\*|` + registry + `)$`, Examples: []any{"docker.io", "registry.example.com:5000", "*"},
	},
	reflect.TypeFor[config.Secret]():        {Type: "string", Description: "Handled as a secret.", Not: &jsonschema.Schema{Const: config.Redacted}},
	reflect.TypeFor[config.AtLeast]():       {Type: "string", Pattern: `^>= *[0-9]{1,5}(\.[0-9]{1,5}){1,2}$`, Examples: []any{">=1.36"}},
	reflect.TypeFor[config.EncryptionKey](): {Type: "string", Pattern: `^[A-Za-z0-9+/]{43}=$`, Description: "32 bytes in base64. A secret."},
	reflect.TypeFor[config.AddressRange](): {
		Type: "string", Pattern: `^[0-9A-Fa-f:.]+(/[0-9]{1,3}|-[0-9A-Fa-f:.]+)$`, Examples: []any{"192.0.2.64/27", "192.0.2.100-192.0.2.120"},
	},
	reflect.TypeFor[netip.Addr]():   {Type: "string", Pattern: `^[0-9A-Fa-f:.]+$`, Examples: []any{"10.0.0.1", "2001:db8::1"}},
	reflect.TypeFor[netip.Prefix](): {Type: "string", Pattern: `^[0-9A-Fa-f:.]+/[0-9]{1,3}$`, Examples: []any{"10.0.0.0/24", "2001:db8::/64"}},
}
