package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/golden"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/pkg/controlplane"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
)

// TestUpstreamTables compares the tables of package upstream with the code of Kubernetes. By these
// tables, a configuration is validated without this code. After an update of Kubernetes, run the
// test with -update.
func TestUpstreamTables(t *testing.T) {
	scores, err := scoresTable()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"gates": gatesTable(), "admission": admissionTable(), "apis": apisTable(), "scores": scores,
	} {
		t.Run(name, func(t *testing.T) { golden.Assert(t, text, "../../pkg/config/upstream/"+name+".txt") })
	}
}

// gatesTable has a line for each gate: its name, its stage, its default, whether it is locked, and
// the gates that it requires.
func gatesTable() string {
	gates := utilfeature.DefaultMutableFeatureGate.DeepCopy()
	requires := gates.Dependencies()
	known := gates.GetAll()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(known)) {
		gate := known[name]
		stage := string(gate.PreRelease)
		if gate.PreRelease == featuregate.GA {
			stage = "GA"
		}
		value := "off"
		if gate.Default {
			value = "on"
		}
		if gate.LockToDefault {
			value += " locked"
		}
		for _, other := range slices.Sorted(slices.Values(requires[name])) {
			value += " requires=" + string(other)
		}
		fmt.Fprintf(&b, "%s %s %s\n", name, stage, value)
	}
	return b.String()
}

// admissionTable has a line for each admission plugin: its name, and whether it is on by default.
func admissionTable() string {
	off := kubeoptions.DefaultOffAdmissionPlugins()
	var b strings.Builder
	for _, name := range slices.Sorted(slices.Values(kubeoptions.AllOrderedPlugins)) {
		fmt.Fprintf(&b, "%s %s\n", name, onOff(!off.Has(name)))
	}
	return b.String()
}

// apisTable has a line for each version of a group: its name, and whether it is served by default.
func apisTable() string {
	var lines []string
	for version, served := range controlplane.DefaultAPIResourceConfigSource().GroupVersionConfigs {
		lines = append(lines, version.String()+" "+onOff(served)+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// scoresTable has a line for each plugin of the scheduler that scores nodes by default: its name,
// and its weight.
func scoresTable() (string, error) {
	defaults, err := latest.Default()
	if err != nil {
		return "", err
	}
	var lines []string
	for _, plugin := range defaults.Profiles[0].Plugins.MultiPoint.Enabled {
		if plugin.Weight > 0 {
			lines = append(lines, fmt.Sprintf("%s %d\n", plugin.Name, plugin.Weight))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, ""), nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
