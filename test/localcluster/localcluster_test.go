package localcluster

import (
	"slices"
	"testing"

	ctl "github.com/orlop-os/orlop/orlopctl/localcluster"
)

// TestCreateArgs checks that orlopctl accepts the arguments and reads the values of all set fields
// from them. A field without a value must set no flag.
func TestCreateArgs(t *testing.T) {
	for _, test := range []struct {
		name    string
		cluster Cluster
		want    map[string]string // flag → value
		unset   []string
	}{
		{
			name:    "one machine with the defaults",
			cluster: Cluster{Name: "one", Image: "build/qemu", ControlPlanes: 1},
			want:    map[string]string{"image": "build/qemu", "control-planes": "1", "timeout": "20m0s"},
			unset:   []string{"memory", "worker-memory", "cpus", "time-dilation", "workers", "config-patch", "operator"},
		},
		{
			name:    "a worker without a size of its own for its memory",
			cluster: Cluster{Name: "conformance", Image: "build/qemu", ControlPlanes: 1, Workers: 1, MemoryMiB: 3072},
			want:    map[string]string{"memory": "3072", "workers": "1"},
			unset:   []string{"worker-memory"},
		},
		{
			name: "all fields",
			cluster: Cluster{
				Name: "bench", Image: "build/qemu", ControlPlanes: 3, Workers: 2, MemoryMiB: 2048, WorkerMemoryMiB: 1024,
				CPUs: 4, Dilation: 2, Patch: "patch.yaml", Operator: "operator",
			},
			want: map[string]string{
				"control-planes": "3", "workers": "2", "memory": "2048", "worker-memory": "1024", "cpus": "4",
				"time-dilation": "2", "config-patch": "patch.yaml", "operator": "operator", "timeout": "40m0s",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			args := test.cluster.createArgs()
			create, rest, err := ctl.Command(nil, nil).Find(args[1:])
			if err != nil || create.Name() != "create" {
				t.Fatalf("%v: found the command %v, %v: want create", args, create, err)
			}
			// The flag timeout belongs to the root command of orlopctl.
			create.Flags().String("timeout", "", "")
			if err := create.ParseFlags(rest); err != nil {
				t.Fatalf("%v: %v", args, err)
			}
			if got := create.Flags().Args(); !slices.Equal(got, []string{test.cluster.Name}) {
				t.Errorf("%v: the arguments without flags are %q, want only the name of the cluster", args, got)
			}
			for flag, want := range test.want {
				if got := create.Flags().Lookup(flag); got == nil || got.Value.String() != want {
					t.Errorf("%v: --%s is %v, want %s", args, flag, got, want)
				}
			}
			for _, flag := range test.unset {
				if create.Flags().Changed(flag) {
					t.Errorf("%v: --%s is set, want no flag", args, flag)
				}
			}
		})
	}
}
