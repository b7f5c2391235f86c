package component

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// GateFlags are the flags of the configured feature gates for an upstream component of the control
// plane. While the component emulates a former version, the gates that this version does not accept
// are left out: the component would not start with them.
func GateFlags(spec nodespec.Spec) []string {
	gates := map[string]bool(spec.Kubernetes.FeatureGates)
	if spec.Emulated.Known() {
		gates = acceptedGates(gates, version.MajorMinor(uint(spec.Emulated.Major), uint(spec.Emulated.Minor)))
	}
	if len(gates) == 0 {
		return nil
	}
	return []string{GateFlag(gates)}
}

// GateFlag is the flag that sets gates, which must not be empty.
func GateFlag(gates config.FeatureGates) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		words = append(words, fmt.Sprintf("%s=%t", name, gates[name]))
	}
	return "--feature-gates=" + strings.Join(words, ",")
}

// acceptedGates returns the gates that a version accepts. A gate can depend on another gate, so a
// gate that is rejected alone is tried again together with the accepted gates.
func acceptedGates(gates map[string]bool, emulated *version.Version) map[string]bool {
	accepted := map[string]bool{}
	for progress := true; progress; {
		progress = false
		for _, name := range slices.Sorted(maps.Keys(gates)) {
			if _, is := accepted[name]; is {
				continue
			}
			next := maps.Clone(accepted)
			next[name] = gates[name]
			trial := utilfeature.DefaultMutableFeatureGate.DeepCopy()
			if trial.SetEmulationVersion(emulated) == nil && trial.SetFromMap(next) == nil {
				accepted, progress = next, true
			}
		}
	}
	return accepted
}
