package upgrade

import (
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/buildinfo"
)

// TestReleaseCheck checks that an expired version or a version with a low epoch causes a warning,
// and that the machine stays healthy.
func TestReleaseCheck(t *testing.T) {
	now := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name    string
		r       buildinfo.Release
		floor   int
		warning string // part of the warning; empty if there is no warning
	}{
		{"no expiry and no epoch", buildinfo.Release{Version: "1"}, 0, ""},
		{"not yet expired", buildinfo.Release{Version: "1", Expires: now.Unix() + 1}, 0, ""},
		{"expired", buildinfo.Release{Version: "1", Expires: now.Unix()}, 0, "version 1 is not maintained any more since 2026-06-01"},
		{"the epoch of the floor", buildinfo.Release{Version: "1", Epoch: 2}, 2, ""},
		{"an epoch below the floor", buildinfo.Release{Version: "1", Epoch: 1}, 2, "version 1 has epoch 1, and one with epoch 2 was committed"},
	} {
		health := &api.HealthResponse{Healthy: true}
		ReleaseCheck(health, c.r, c.floor, now)
		if !health.Healthy || (len(health.Checks) == 0) != (c.warning == "") || c.warning != "" && !strings.Contains(health.Checks[0].Detail, c.warning) {
			t.Errorf("%s: %v", c.name, health)
		}
	}
}
