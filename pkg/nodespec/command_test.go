package nodespec

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
)

// TestRun checks that Run decodes the output of a command, and returns no value if the command
// fails.
func TestRun(t *testing.T) {
	failed := errors.New("failed")
	for _, c := range []struct {
		output string
		err    error
		want   Savepoint
		says   string
	}{
		{output: `{"revision": 7}`, want: Savepoint{Revision: 7}},
		{output: `{"revision": 7}`, err: failed, says: "failed"},
		{output: "usage", says: "the orchestrator's answer to take-savepoint cannot be read"},
	} {
		run := func(_ context.Context, uid uint32, command string, request any, files ...*os.File) ([]byte, error) {
			if uid != 101 || command != "take-savepoint" || request != nil || len(files) != 0 {
				t.Errorf("%d %s %v %v", uid, command, request, files)
			}
			return []byte(c.output), c.err
		}
		got, err := Run[Savepoint](t.Context(), run, 101, "take-savepoint", nil)
		if got != c.want || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v, %v; want %+v, %q", got, err, c.want, c.says)
		}
	}
}
