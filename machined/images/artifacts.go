package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/artifact/registry"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
)

// How the artifact of an add-on reaches the controllers, which have no access to containerd and
// call no registry:
//
//  1. machined searches for the artifact in a directory on DATA, then in containerd (`orlopctl
//     image import`), then in the registries of the add-on, in their order. machined verifies the
//     artifact by its digest and stores it in the directory (artifact.Store).
//  2. The add-ons file of the controllers says that the artifact is present, or why it is missing.
//     The controllers read the directory themselves. machined unpacks no artifact.
//  3. When no wanted artifact is missing, machined releases the wanted artifacts in containerd, so
//     that the kubelet can delete them there. When, in addition, the previous configuration or
//     version cannot become active again, machined prunes the unwanted artifacts in the directory.
//
// No step of the boot waits for the artifacts. Failures are retried.

const (
	// localTimeout bounds a call of containerd. registryTimeout bounds the requests to a registry,
	// including the download of the artifact.
	localTimeout    = 30 * time.Second
	registryTimeout = 5 * time.Minute
	// The delay after a failure is artifactMinBackoff, doubles with each failure, and is at most
	// artifactMaxBackoff.
	artifactMinBackoff = 5 * time.Second
	artifactMaxBackoff = 5 * time.Minute
	// artifactCheckInterval is the interval at which present artifacts are verified.
	artifactCheckInterval = time.Hour
	// unnamedTime is the time since its import at which an artifact that no document names is
	// unpinned in containerd, so that the kubelet can delete it.
	unnamedTime = 7 * 24 * time.Hour
)

// artifactManager provides the artifacts of add-ons. It is not safe for concurrent use.
type artifactManager struct {
	store artifact.Store
	local interface {
		artifact.Source
		Release(ctx context.Context, digests []string) error
		Unpin(ctx context.Context, digests []string, then time.Time) error
	}
	egress func() egress.Config
	event  func(kind, message string)
	// up reports whether containerd runs; if not, the artifacts in containerd are unknown.
	up bool
	// last is the result of the last round.
	last Artifacts
}

// Artifacts maps the manifest digest of an artifact to the reason why it is missing; the reason is
// empty if the artifact is present. The machine still searches for an artifact without an entry.
type Artifacts map[string]string

// wantedArtifacts returns the add-ons of a configuration with an artifact, one per artifact.
func wantedArtifacts(c *config.Config) []config.AddonSpec {
	var all []config.AddonSpec
	for _, a := range c.Addons {
		if a.Spec.Artifact != (config.Artifact{}) && !slices.ContainsFunc(all, func(o config.AddonSpec) bool { return o.Artifact == a.Spec.Artifact }) {
			all = append(all, a.Spec)
		}
	}
	return all
}

// round searches once for all wanted artifacts, and publishes each new result. It ends early with
// ctx.
func (k *artifactManager) round(ctx context.Context, wanted []config.AddonSpec, publish func(Artifacts)) Artifacts {
	found, local := Artifacts{}, map[string]error{}
	for _, w := range wanted {
		sum := w.Artifact.SHA256
		err := k.store.Verify(sum)
		if err != nil && k.up {
			err = k.fetchFrom(ctx, localTimeout, w.Artifact, k.local)
		}
		if local[sum] = err; err == nil {
			found[sum] = ""
		}
	}
	for sum, err := range local { // the former result is published until there is a new result
		if why := k.last[sum]; err != nil && why != "" {
			found[sum] = why
		}
	}
	publish(maps.Clone(found))
	for _, w := range wanted {
		if sum := w.Artifact.SHA256; local[sum] != nil && ctx.Err() == nil {
			found[sum] = k.fetchFromRegistries(ctx, w, local[sum])
			publish(maps.Clone(found))
		}
	}
	k.last = found
	return found
}

// fetchFromRegistries tries the registries of an artifact, and returns why all of them failed.
// local is the reason why the artifact is not on the machine.
func (k *artifactManager) fetchFromRegistries(ctx context.Context, w config.AddonSpec, local error) string {
	var tried []string
	switch {
	case !errors.Is(local, fs.ErrNotExist):
		tried = append(tried, fmt.Sprintf("the copy on this machine is unusable: %v", local))
	case !k.up:
		tried = append(tried, "containerd, which may have it, does not run yet")
	default:
		tried = append(tried, "it was not imported on this machine")
	}
	if len(w.Registries) == 0 {
		tried = append(tried, "no registry is named (spec.registries)")
	}
	for _, r := range w.Registries {
		err := k.fetch(ctx, w.Artifact, r)
		switch {
		case err == nil:
			return ""
		case errors.Is(err, fs.ErrNotExist):
			err = errors.New("does not have it")
		}
		tried = append(tried, fmt.Sprintf("registry %s: %v", r.Address, err))
	}
	return fmt.Sprintf("%s: %s; import it with `orlopctl image import`", w.Artifact, strings.Join(tried, ", "))
}

// fetch fetches an artifact from a registry.
func (k *artifactManager) fetch(ctx context.Context, a config.Artifact, r config.AddonRegistry) error {
	from := registry.Source{Reference: a.In(r.Address), PlainHTTP: r.PlainHTTP, Username: r.Username, Password: r.Password.Reveal(), Egress: k.egress()}
	if !r.CA.IsZero() {
		from.CA = []byte(r.CA.PEM())
	}
	origin, err := from.Artifact()
	if err != nil {
		return err
	}
	return k.fetchFrom(ctx, registryTimeout, a, origin)
}

// fetchFrom fetches an artifact from a source within a time limit.
func (k *artifactManager) fetchFrom(ctx context.Context, limit time.Duration, a config.Artifact, from artifact.Source) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := k.store.Fetch(ctx, a.SHA256, from)
	if err == nil {
		k.event("operation", a.String()+" has come")
	}
	return err
}

// prune releases the wanted artifacts in containerd, because the directory contains them. settled
// is true if no previous configuration or version may become active again. In this case, prune also
// unpins the unwanted artifacts that were imported more than unnamedTime ago, and deletes unwanted
// artifacts in the directory. It is called only when all wanted artifacts are present.
func (k *artifactManager) prune(ctx context.Context, wanted []config.AddonSpec, settled bool) error {
	var sums, digests []string
	for _, w := range wanted {
		sums, digests = append(sums, w.Artifact.SHA256), append(digests, w.Artifact.Digest())
	}
	var problems []error
	if len(digests) > 0 && k.up {
		ctx, cancel := context.WithTimeout(ctx, localTimeout)
		defer cancel()
		problems = append(problems, k.local.Release(ctx, digests))
	}
	if settled {
		if k.up {
			ctx, cancel := context.WithTimeout(ctx, localTimeout)
			defer cancel()
			problems = append(problems, k.local.Unpin(ctx, digests, time.Now().Add(-unnamedTime)))
		}
		dropped, err := k.store.Prune(sums)
		if dropped > 0 {
			k.event("operation", fmt.Sprintf("pruned artifacts that no add-on uses: %d files", dropped))
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// retryAfter returns the delay after consecutive failures.
func retryAfter(failures int) time.Duration {
	return backoff.Backoff{Min: artifactMinBackoff, Max: artifactMaxBackoff}.Delay(failures)
}

// missing reports whether an artifact is missing.
func (a Artifacts) missing() bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(a)), func(why string) bool { return why != "" })
}

// Artifacts returns the state of the artifacts of add-ons.
func (m *Manager) Artifacts() cell.View[Artifacts] { return m.artifacts.View() }

// RunArtifacts provides the artifacts of the configured add-ons until ctx ends.
func (m *Manager) RunArtifacts(ctx context.Context) {
	k := &artifactManager{
		store: artifact.Store{Dir: paths.Addons, Group: paths.UserControllers}, local: m.store,
		egress: m.deps.Egress,
		event:  func(kind, message string) { m.deps.Event("addons", kind, message) },
	}
	failures := 0
	for configs := m.deps.Config.Watch(); ; {
		now := configs.Current()
		looking, stop := context.WithCancel(ctx)
		done := make(chan time.Duration, 1)
		go func() {
			// the delay after a panic: less than artifactCheckInterval, so it counts as a failure
			after := artifactCheckInterval / 2
			_ = panics.Do("artifacts of add-ons", func() error { after = m.artifactRound(looking, k, now, failures); return nil })
			done <- after
		}()
		var again <-chan time.Time
		for waiting := true; waiting; {
			select {
			case after := <-done:
				done, again = nil, time.After(after)
				if after < artifactCheckInterval {
					failures++
				}
			case <-again:
				waiting = false
			case <-configs.Changed():
				waiting, failures = false, 0
			case <-m.changed:
				waiting, failures = false, 0
			case <-ctx.Done():
				stop()
				return
			}
		}
		stop()
		if done != nil {
			<-done // wait for the end of the round: k is not safe for concurrent use
		}
	}
}

// artifactRound performs a round and returns the time until the next round.
func (m *Manager) artifactRound(ctx context.Context, k *artifactManager, now Config, failures int) time.Duration {
	if now.Config == nil { // no configuration, or unreadable: the wanted artifacts are unknown
		return artifactCheckInterval
	}
	k.up, _ = m.deps.Running.Get()
	wanted := wantedArtifacts(now.Config)
	before, _ := m.artifacts.Get()
	found := k.round(ctx, wanted, func(a Artifacts) {
		if have, _ := m.artifacts.Get(); !maps.Equal(have, a) {
			m.artifacts.Set(a)
		}
	})
	if ctx.Err() != nil {
		return 0
	}
	for sum, why := range found {
		if why != "" && why != before[sum] {
			k.event("failure", why)
		}
	}
	if found.missing() {
		return retryAfter(failures + 1)
	}
	settled := !now.OnTrial && !m.deps.UpgradePending()
	if err := k.prune(ctx, wanted, settled); err != nil && ctx.Err() == nil {
		k.event("failure", err.Error())
		return artifactMaxBackoff
	}
	if !settled {
		return artifactMaxBackoff
	}
	return artifactCheckInterval
}
