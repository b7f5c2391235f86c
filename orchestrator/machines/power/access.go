package power

import (
	"cmp"
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
	keyUUID        = "uuid"
	keyEndpoint    = "endpoint"
	keySystem      = "system"
	keyUser        = corev1.BasicAuthUsernameKey
	keyPassword    = corev1.BasicAuthPasswordKey
	keyFingerprint = "fingerprint"
	keyCA          = "ca.crt"
)

var keys = []string{keyMachine, keyUUID, keyEndpoint, keySystem, keyUser, keyPassword, keyFingerprint, keyCA}

// boardOf returns a text that identifies the controller (BMC) of a Secret: its address, and the
// system if the controller has several.
func boardOf(secret *corev1.Secret) string {
	return strings.ToLower(strings.TrimRight(strings.TrimSpace(string(secret.Data[keyEndpoint])), "/")) + " " + strings.TrimSpace(string(secret.Data[keySystem]))
}

// configOf returns the access to a power switch that a Secret contains, and the UUID of the machine
// to which the Secret belongs. The UUID is empty if the Secret names the machine instead. machine
// is the name of the machine; empty for a host of the inventory, which has no lasting name. An
// error contains no value of the Secret.
func configOf(machine string, secret *corev1.Secret) (config redfish.Config, uuid string, err error) {
	fail := func(format string, args ...any) (redfish.Config, string, error) {
		return redfish.Config{}, "", fmt.Errorf("Secret %s/%s: "+format, append([]any{secret.Namespace, secret.Name}, args...)...)
	}
	if secret.Type != machineapi.PowerSecretType {
		return fail("its type is not %s: create it again with this type", machineapi.PowerSecretType)
	}
	for key := range secret.Data {
		if !slices.Contains(keys, key) {
			return fail("unknown key %q: known are %s", key, strings.Join(keys, ", "))
		}
	}
	text := func(key string) string { return strings.TrimSpace(string(secret.Data[key])) }
	// The Secret itself names the machine to which it belongs. If only the objects of machines
	// named Secrets, an object with the Secret of another machine would cause two faults: the other
	// machine would be switched off, and the pods of a running machine would be released.
	of := string(secret.Data[keyMachine])
	switch uuid = text(keyUUID); {
	case of != "" && uuid != "":
		return fail("it has both of the keys %s and %s: remove one of them", keyMachine, keyUUID)
	case uuid != "":
		if fields := strings.Split(uuid, "-"); len(uuid) != 36 || len(fields) != 5 {
			return fail("key %s is no UUID: set it to the UUID that the management controller shows", keyUUID)
		}
	case machine == "":
		return fail("key %s is missing: set it to the UUID of the machine; an OrlopHost has no lasting name", keyUUID)
	case of != machine:
		return fail("key %s is not %s: set it to the name of the machine with this controller", keyMachine, machine)
	}
	for _, key := range []string{keyEndpoint, keyUser, keyPassword} {
		if len(secret.Data[key]) == 0 {
			return fail("key %s is missing: set it", key)
		}
	}
	return redfish.Config{
		Name: cmp.Or(machine, uuid), Endpoint: text(keyEndpoint), System: text(keySystem), User: text(keyUser), Password: string(secret.Data[keyPassword]),
		Fingerprint: text(keyFingerprint), CA: secret.Data[keyCA],
	}, uuid, nil
}
