package config

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// digestSize is the size of the digest of a field in bytes.
const digestSize = 16

// ClusterDigests maps the path of each field of the Cluster document ("Cluster.spec.endpoint") to a
// digest. It returns nil if there is no Cluster document. The whole content of a list, a map or an
// optional block has a single digest, so two machines with the same version of the system have the
// same paths. A digest is an HMAC (RFC 2104, SHA-256) of the path and the value, secrets included,
// with a key of the caller. So a digest helps to guess a secret only if the key is known.
func ClusterDigests(c *Config, key []byte) map[string][]byte {
	if c == nil || c.Cluster == nil {
		return nil
	}
	out := map[string][]byte{}
	digestFields("Cluster", reflect.ValueOf(c.Cluster).Elem(), func(path string, v reflect.Value) {
		mac := hmac.New(sha256.New, key)
		// A write to a hash does not fail.
		_, _ = fmt.Fprintf(mac, "%s\x00%s", path, printer{reveal: true}.text(path, v))
		out[path] = mac.Sum(nil)[:digestSize]
	})
	return out
}

// digestFields calls the function each for each field below path. In place of a plain block, it
// calls the function for the fields of the block.
func digestFields(path string, v reflect.Value, each func(path string, v reflect.Value)) {
	if v.Kind() != reflect.Struct {
		each(path, v)
		return
	}
	if _, text := leaf(v); text {
		each(path, v)
		return
	}
	for i := range v.NumField() {
		digestFields(path+"."+fieldName(v.Type().Field(i)), v.Field(i), each)
	}
}

// text returns the value of a field as YAML; nil if it is empty.
func (pr printer) text(path string, v reflect.Value) []byte {
	if isEmpty(v) {
		return nil
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	err := enc.Encode(pr.value(v, path))
	if err == nil {
		err = enc.Close()
	}
	if err != nil {
		// This cannot happen: the nodes are valid, and a write to the buffer does not fail.
		panic(fmt.Sprintf("config: cannot print %s: %v", path, err))
	}
	return out.Bytes()
}

// workerFields are the fields and blocks of the Cluster document that a worker gets from the
// control plane when it joins (membership.workerDocuments). A worker does not use the other fields,
// or must not have their values.
var workerFields = []string{
	"Cluster.metadata", "Cluster.spec.endpoint", "Cluster.spec.controlPlanes", "Cluster.spec.virtualAddresses", "Cluster.spec.joinRequests",
	"Cluster.spec.networks", "Cluster.spec.external", "Cluster.spec.dns", "Cluster.spec.localVolumes", "Cluster.spec.podCertificates",
	"Cluster.spec.pki.kubernetes.cert", "Cluster.spec.pki.machine.cert", "Cluster.spec.pki.client.cert",
	"Cluster.spec.pki.accepted.kubernetes", "Cluster.spec.pki.accepted.machine", "Cluster.spec.pki.accepted.client",
	"Cluster.spec.kubernetes.maxPods", "Cluster.spec.kubernetes.machineObjects",
}

// IsWorkerField reports whether a field of the Cluster document has the same value on workers and
// control-plane machines.
func IsWorkerField(path string) bool {
	return slices.ContainsFunc(workerFields, func(f string) bool { return path == f || strings.HasPrefix(path, f+".") })
}
