package etcd

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestReencrypt checks that only a control-plane machine re-encrypts Secrets, and only if its API
// server encrypts with the present key. DropKeys re-encrypts them before a key is dropped, or
// counts them in a dry run.
func TestReencrypt(t *testing.T) {
	now := cell.New(Config{Config: configured()})
	former, calls := error(nil), ""
	k := New(Deps{
		Config:    now.View(),
		Stopping:  t.Context(),
		FormerKey: func(context.Context) error { return former },
		Command: func(_ context.Context, _ uint32, command string, request any, _ ...*os.File) ([]byte, error) {
			text, err := nodespec.Encode(request)
			calls += command + " " + string(text)
			return []byte(`{"secrets": 12, "reencrypted": 3}`), err
		},
	})
	for _, countOnly := range []bool{true, false} {
		if got, err := k.Reencrypt(t.Context(), countOnly); err != nil || got != (nodespec.ReencryptResult{Secrets: 12, Reencrypted: 3}) {
			t.Errorf("count only %t: %+v, %v", countOnly, got, err)
		}
	}
	if want := "reencrypt-secrets {\"count\":true}reencrypt-secrets {\"count\":false}"; strings.Join(strings.Fields(calls), " ") != want {
		t.Errorf("called %q, want %q", calls, want)
	}
	calls = ""
	if lines, err := k.DropKeys(t.Context(), nil, false); err != nil || lines != nil || calls != "" {
		t.Errorf("without a key to drop: %q, %v, called %q", lines, err, calls)
	}
	if lines, err := k.DropKeys(t.Context(), []string{"a", "b"}, true); err != nil || len(lines) != 1 || lines[0] != "drop the encryption key a, b: 3 of 12 Secrets were encrypted with another key than the present one, and are rewritten" || !strings.Contains(calls, `{"count":true}`) {
		t.Errorf("%q, %v, called %q", lines, err, calls)
	}
	calls = ""
	former = errors.New("orchestrator-api does not run with the present configuration yet")
	if _, err := k.Reencrypt(t.Context(), true); !errors.Is(err, former) {
		t.Errorf("while the API server uses a former key: %v", err)
	}
	if lines, err := k.DropKeys(t.Context(), []string{"a"}, false); !errors.Is(err, former) || lines != nil || !strings.HasPrefix(err.Error(), "configuration refused; some Secrets may be encrypted again already, nothing else has changed: Cluster.spec: cannot drop the encryption key a: ") {
		t.Errorf("%q, %v", lines, err)
	}
	former = nil
	now.Set(Config{})
	if _, err := k.Reencrypt(t.Context(), true); err == nil || !strings.Contains(err.Error(), "ask a control-plane machine") {
		t.Errorf("without etcd: %v", err)
	}
	if calls != "" {
		t.Errorf("the rejected calls ran the commands %q", calls)
	}
}
