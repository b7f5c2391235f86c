package rotation

import (
	"fmt"
	"testing"
)

func TestNotRestarted(t *testing.T) {
	was := map[string]int32{"controllers": 7, "node": 8}
	for pid, want := range map[int]string{7: "controllers has not restarted", 0: "controllers has not restarted", 9: ""} {
		services := fmt.Sprintf(`[{"name": "controllers", "pid": %d}, {"name": "node", "pid": 8}]`, pid)
		if got, err := notRestarted([]byte(services), was, []string{"controllers"}); got != want || err != nil {
			t.Errorf("pid %d: %q, %v", pid, got, err)
		}
	}
}
