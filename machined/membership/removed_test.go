package membership

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
)

// TestWipe checks that a removed worker first stops its pods and then wipes its disk. It does not
// wipe the disk if the worker has been accepted again in the meantime.
func TestWipe(t *testing.T) {
	for _, accepted := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		var done []string
		w := &Worker{State: cell.New(State{Removed: true})}
		c := config.New("w1", config.RoleWorker)
		c.Machine.Spec.Join = &config.Join{OnRemoval: config.RemovalWipe}
		w.deps = &Deps{
			Config: cell.New(c).View(),
			Files:  Files{OfflineAPI: filepath.Join(t.TempDir(), "offline")}, Event: func(string, string, string) {},
			Removal: Removal{
				StopPods: func(context.Context) error {
					done = append(done, "pods")
					if accepted {
						w.clearRemoved()
						cancel()
					}
					return nil
				},
				Wipe: func(context.Context) error { done = append(done, "wipe"); cancel(); return nil },
			},
		}
		w.RunRemoval(ctx)
		cancel()
		want := []string{"pods", "wipe"}
		if accepted {
			want = want[:1]
		}
		if !slices.Equal(done, want) {
			t.Errorf("accepted %t: %q, want %q", accepted, done, want)
		}
	}
}

// TestWipesOnRemoval checks that a removed machine wipes its disk only if its configuration has the
// policy wipe for a removal.
func TestWipesOnRemoval(t *testing.T) {
	if wipesOnRemoval(nil) || wipesOnRemoval(config.New("w1", config.RoleWorker)) {
		t.Error("a machine that has no policy for a removal is wiped")
	}
	for policy, want := range map[config.OnRemoval]bool{"": false, config.RemovalKeep: false, config.RemovalWipe: true} {
		if c := config.New("w1", config.RoleWorker).WithJoin(config.Join{OnRemoval: policy}); wipesOnRemoval(c) != want {
			t.Errorf("policy %q: wiped %t", policy, !want)
		}
	}
}
