package kubeapiserver

import (
	"slices"
	"testing"
)

// TestAdmissionPlugins compares the list that AdmissionPlugins derives from flags with the options
// of the server.
func TestAdmissionPlugins(t *testing.T) {
	opts := parsed(t).Admission.GenericAdmission
	var want []string
	for _, name := range opts.RecommendedPluginOrder {
		if slices.Contains(opts.EnablePlugins, name) || !opts.DefaultOffPlugins.Has(name) && !slices.Contains(opts.DisablePlugins, name) {
			want = append(want, name)
		}
	}
	args := []string{"--profiling=false", enablePlugins + "NodeRestriction," + NodeAgentAccess + "," + NodeAnnotations + "," + ReservedNamespaces + "," + MachineAccess + "," + MachinePorts}
	if got := AdmissionPlugins(args); !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	if got := AdmissionPlugins(nil); slices.Contains(got, "NodeRestriction") || slices.Contains(got, MachineAccess) || !slices.Contains(got, "NamespaceLifecycle") {
		t.Errorf("without flags: %q", got)
	}
	args = append(args, disablePlugins+"DefaultStorageClass,LimitRanger")
	without := slices.DeleteFunc(slices.Clone(want), func(name string) bool { return name == "DefaultStorageClass" || name == "LimitRanger" })
	if got := AdmissionPlugins(args); !slices.Equal(got, without) || len(without) != len(want)-2 {
		t.Errorf("with disabled plugins: %q\nwant %q", got, without)
	}
	for name, own := range map[string]bool{MachineAccess: true, "NodeRestriction": false} {
		if IsOwnPlugin(name) != own {
			t.Errorf("%s: IsOwnPlugin returns %t, want %t", name, !own, own)
		}
	}
}
