package membership

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/cell"
)

// TestWipe checks that a removed worker is erased after its pods have stopped, unless it is
// accepted again meanwhile.
func TestWipe(t *testing.T) {
	for _, accepted := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		var done []string
		w := &Worker{State: cell.New(State{Removed: true})}
		w.deps = &Deps{
			Files: Files{OfflineAPI: filepath.Join(t.TempDir(), "offline")}, Event: func(string, string, string) {},
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
