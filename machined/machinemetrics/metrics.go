// Package machinemetrics has the metrics about the machine that only PID 1 knows: its release, its
// health, its services, its upgrade, its clock, and the expiry of its certificates. metricsd reads
// them from a socket (package exposition).
//
// The package decides only on names and labels; no metric contains a secret, an address of a caller
// or an error text.
package machinemetrics

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/service/exposition"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// State is the state of the machine.
type State struct {
	Version, Kubernetes string
	Health              *api.HealthResponse
	Services            []supervise.Status
	Upgrade             *api.UpgradeStatus
	Clock               Clock
	Certificates        []Certificate
}

// Clock is the state of the clock.
type Clock struct {
	Synced bool
	Offset time.Duration // in the last successful round
}

// Certificate is a certificate in a file. A file can contain several.
type Certificate struct {
	File, Subject string
	Expires       time.Time
}

// Families returns the metrics of a state.
func Families(s State) *exposition.Families {
	f := new(exposition.Families)
	f.Gauge("orlop_build_info", "The version of Orlop OS that the machine runs, and its version of Kubernetes; always 1.", 1, "version", s.Version, "kubernetes", s.Kubernetes)
	f.Gauge("orlop_healthy", "1 if all checks of the health have passed, 0 otherwise.", exposition.Number(s.Health.GetHealthy()))
	for _, c := range s.Health.GetChecks() {
		f.Gauge("orlop_health_check", "1 if the check of the health has passed, 0 otherwise.", exposition.Number(c.Ok), "check", c.Name)
	}
	for _, v := range s.Services {
		f.Gauge("orlop_service_ready", "1 if the service is ready, 0 otherwise.", exposition.Number(v.State == supervise.Running), "service", v.Name)
		f.Counter("orlop_service_restarts_total", "The number of processes of the service after the first.", float64(v.Restarts), "service", v.Name)
		for _, c := range v.Components {
			f.Gauge("orlop_component_ready", "1 if the component of the service is ready, 0 otherwise.", exposition.Number(c.Ready), "service", v.Name, "component", c.Name)
		}
	}
	if u := s.Upgrade; u.GetPhase() != "" {
		f.Gauge("orlop_upgrade_phase", "The phase of the last upgrade, with the version that it installs; always 1.", 1, "phase", u.Phase, "version", u.To)
	}
	f.Gauge("orlop_clock_synchronized", "1 if the clock is synchronized with a time server, 0 otherwise.", exposition.Number(s.Clock.Synced))
	f.Gauge("orlop_clock_offset_seconds", "The offset of the clock in the last successful round of the time client.", s.Clock.Offset.Seconds())
	for i, c := range s.Certificates { // two CAs of a rotation can have the same name
		same := func(o Certificate) bool { return o.File == c.File && o.Subject == c.Subject }
		if slices.ContainsFunc(s.Certificates[:i], same) {
			continue
		}
		first := c.Expires
		for _, o := range s.Certificates[i:] {
			if same(o) && o.Expires.Before(first) {
				first = o.Expires
			}
		}
		f.Gauge("orlop_certificate_expiry_timestamp_seconds", "The time at which a certificate of the machine expires; the machine renews its own certificates before.", float64(first.Unix()), "file", strings.TrimPrefix(c.File, paths.Run+"/"), "subject", c.Subject)
	}
	return f
}

// readTimeout bounds the reading of a state, because a disk may not answer.
const readTimeout = 5 * time.Second

// maxReads bounds the concurrent readings in PID 1.
const maxReads = 2

// Handler returns the handler of the socket. read returns the present state.
func Handler(read func(context.Context) (State, error)) http.Handler {
	var bounded limits.Bounded
	running := make(chan struct{}, maxReads)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != nodespec.MetricsOfMachine {
			http.NotFound(w, r)
			return
		}
		release, ok := limits.TryAcquire(running)
		if !ok {
			http.Error(w, "other scrapes are running", http.StatusServiceUnavailable)
			return
		}
		defer release()
		s, err := limits.Read(r.Context(), &bounded, "metrics of the machine", readTimeout, read)
		var text bytes.Buffer
		if err == nil {
			err = Families(s).Write(&text)
		}
		if err != nil {
			http.Error(w, fmt.Sprintf("the state of the machine is unknown: %v", err), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write(text.Bytes()) // fails if metricsd has disconnected
	})
}
