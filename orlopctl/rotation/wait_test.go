package rotation

import (
	"fmt"
	"testing"
)

// TestNotRestarted checks that notRestarted names a service of the list whose process has the same
// PID as before, or no process. It ignores other services.
func TestNotRestarted(t *testing.T) {
	was := map[string]int32{"controllers": 7, "node": 8}
	for pid, want := range map[int]string{7: "controllers has not restarted", 0: "controllers has not restarted", 9: ""} {
		services := fmt.Sprintf(`[{"name": "controllers", "pid": %d}, {"name": "node", "pid": 8}]`, pid)
		if got, err := notRestarted([]byte(services), was, []string{"controllers"}); got != want || err != nil {
			t.Errorf("PID %d: got %q, %v", pid, got, err)
		}
	}
}
