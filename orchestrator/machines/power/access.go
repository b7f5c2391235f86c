package power

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/machineprovider/redfish"
)

// The keys of a Secret with the access to a power switch.
const (
	keyMachine     = "machine"
	keyEndpoint    = "endpoint"
	keySystem      = "system"
	keyUser        = corev1.BasicAuthUsernameKey
	keyPassword    = corev1.BasicAuthPasswordKey
	keyFingerprint = "fingerprint"
	keyCA          = "ca.crt"
)

var keys = []string{keyMachine, keyEndpoint, keySystem, keyUser, keyPassword, keyFingerprint, keyCA}

// configOf returns the access to the power switch of a machine in a Secret. The error names the
// Secret, and a key, but no value of it, except for the name of a machine.
func configOf(machine string, secret *corev1.Secret) (redfish.Config, error) {
	fail := func(format string, args ...any) (redfish.Config, error) {
		return redfish.Config{}, fmt.Errorf("Secret %s/%s: "+format, append([]any{secret.Namespace, secret.Name}, args...)...)
	}
	if secret.Type != machineapi.PowerSecretType {
		return fail("its type is not %s: create it again with this type", machineapi.PowerSecretType)
	}
	for key := range secret.Data {
		if !slices.Contains(keys, key) {
			return fail("unknown key %q: known are %s", key, strings.Join(keys, ", "))
		}
	}
	// An object of a machine may name the Secret of another machine: the wrong machine would be
	// switched off, and the pods of a running machine would be released.
	if of := string(secret.Data[keyMachine]); of != machine {
		return fail("key %s is not %s: set it to the name of the machine with this controller", keyMachine, machine)
	}
	for _, key := range []string{keyEndpoint, keyUser, keyPassword} {
		if len(secret.Data[key]) == 0 {
			return fail("key %s is missing: set it", key)
		}
	}
	text := func(key string) string { return strings.TrimSpace(string(secret.Data[key])) }
	return redfish.Config{
		Name: machine, Endpoint: text(keyEndpoint), System: text(keySystem), User: text(keyUser), Password: string(secret.Data[keyPassword]),
		Fingerprint: text(keyFingerprint), CA: secret.Data[keyCA],
	}, nil
}
