package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/diskkey"
)

// TestRecovery checks what a recovery passes on, and that the machine reboots only after a
// successful one.
func TestRecovery(t *testing.T) {
	state, data := diskkey.NewRecoveryKey(), diskkey.NewRecoveryKey()
	volumes := []disk.Locked{
		{Volume: diskkey.Volume{Device: "/dev/vda4", Label: "STATE"}, UUID: uuid.UUID{1}, Metadata: diskkey.Metadata{Recovery: diskkey.Recovery{Recipients: []string{"age1a"}, Ciphertext: "c"}}},
		{Volume: diskkey.Volume{Device: "/dev/vda5", Label: "DATA"}},
	}
	both := []*api.RecoveryKey{{Label: "DATA", Key: string(data), Binding: "digest"}, {Label: "STATE", Key: string(state)}}
	damaged, refused := errors.New("/dev/vda4: cannot open STATE: its header is damaged"), errors.New("refused")
	for _, c := range []struct {
		name    string
		locked  []disk.Locked
		fault   error
		request *api.RecoverRequest
		refuse  error
		want    string // a part of the error; empty: success
	}{
		{"both", volumes, nil, &api.RecoverRequest{Keys: both}, nil, ""},
		{"with the permission", volumes, nil, &api.RecoverRequest{Keys: both, NewState: true}, nil, ""},
		{"no key for DATA", volumes, nil, &api.RecoverRequest{Keys: both[1:]}, nil, "encryption: DATA: recovery key: has 0 characters"},
		{"nothing is locked", nil, nil, &api.RecoverRequest{Keys: both}, nil, "encryption: no partition is locked; nothing was changed"},
		{"a damaged header", nil, damaged, &api.RecoverRequest{Keys: both}, nil, "its header is damaged"},
		{"a refused recovery", volumes, nil, &api.RecoverRequest{Keys: both}, refused, "encryption: refused"},
	} {
		var got *disk.RecoverRequest
		var why string
		r := recovery{
			locked:     func(context.Context) ([]disk.Locked, error) { return c.locked, c.fault },
			recover:    func(_ context.Context, r disk.RecoverRequest) error { got = &r; return c.refuse },
			recipients: func() []string { return []string{"age1configured"} },
			reboot:     func(r power.Request) error { why = r.Why; return nil },
		}
		err := r.Recover(t.Context(), c.request, "alice")
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) || why != "" || (got != nil) != (c.refuse != nil) {
				t.Errorf("%s: %v, reboot %q, request %+v", c.name, err, why, got)
			}
			continue
		}
		if err != nil || why != "recovery of encrypted partitions, asked by alice" || got.NewState != c.request.NewState || !slices.Equal(got.Recipients, []string{"age1configured"}) {
			t.Fatalf("%s: %v, reboot %q, request %+v", c.name, err, why, got)
		}
		if v := got.Volumes; len(v) != 2 || v[0].Label != "STATE" || v[0].Key != state || v[0].Bound != "" || v[1].Key != data || v[1].Bound != "digest" || v[1].Device != "/dev/vda5" {
			t.Errorf("%s: %+v", c.name, v)
		}
	}
	r := recovery{locked: func(context.Context) ([]disk.Locked, error) { return volumes, nil }}
	if all, err := r.Locked(t.Context()); err != nil || len(all) != 2 || all[0].Uuid != (uuid.UUID{1}).String() || all[0].RecoveryKey != "c" || !slices.Equal(all[0].Recipients, []string{"age1a"}) {
		t.Errorf("%v, %v", all, err)
	}
	r.locked = func(context.Context) ([]disk.Locked, error) { return nil, damaged }
	if _, err := r.Locked(t.Context()); !errors.Is(err, damaged) {
		t.Error(err)
	}
}
