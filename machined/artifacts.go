package main

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
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/imagestore"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/registry"
)

// How the artefact of an add-on comes to the controllers, who do not reach containerd, and ask no
// registry:
//
//  1. It is looked for in a folder on DATA, then in containerd, where `orlopctl image import` has put it, then in the registries that the
//     add-on names, in their order. What comes is verified by its digest, and kept in the folder (artifact.Store).
//  2. The controllers' file of add-ons says that it is there, or why it is not. They read the folder themselves: nothing is unpacked here.
//  3. What is there is let go in containerd, and what nobody wants any more in the folder. Not so while something that is wanted is missing,
//     or while the configuration or the version before may come back.
//
// Nothing waits for any of this, and what fails is tried again.

const (
	// localTime bounds what is asked of containerd, and registryTime one registry, all of the
	// artefact included.
	localTime    = 30 * time.Second
	registryTime = 5 * time.Minute
	// A first failure is followed by another try after retryFirst, each further one after twice the
	// time, at most retryMost.
	retryFirst = 5 * time.Second
	retryMost  = 5 * time.Minute
	// lookTime is how often what is there is verified.
	lookTime = time.Hour
	// unnamedTime is how long what was imported waits for a document that names it.
	unnamedTime = 7 * 24 * time.Hour
)

// artifactKeeper keeps the artefacts of add-ons. It is for one goroutine.
type artifactKeeper struct {
	store artifact.Store
	local interface {
		artifact.Source
		Release(ctx context.Context, digests []string) error
		Unpin(ctx context.Context, digests []string, then time.Time) error
	}
	note func(kind, message string)
	// up says whether containerd runs. What it has is not known as long as it does not.
	up bool
	// last is what the last round has found.
	last artifacts
}

// artifacts says of artefacts, by the digest of their manifest, why they are missing; empty: they
// are there. Those that it does not name are being looked for.
type artifacts map[string]string

// wantedArtifacts are the add-ons of a configuration whose artefacts a machine needs, one for each
// artefact.
func wantedArtifacts(c *config.Config) []config.AddonSpec {
	var all []config.AddonSpec
	for _, a := range c.Addons {
		if a.Spec.Artifact != (config.Artifact{}) && !slices.ContainsFunc(all, func(o config.AddonSpec) bool { return o.Artifact == a.Spec.Artifact }) {
			all = append(all, a.Spec)
		}
	}
	return all
}

// round looks once for all that is wanted, and says each time that it knows more what there is. It
// ends early with ctx.
func (k *artifactKeeper) round(ctx context.Context, wanted []config.AddonSpec, tell func(artifacts)) artifacts {
	found, local := artifacts{}, map[string]error{}
	for _, w := range wanted {
		sum := w.Artifact.SHA256
		err := k.store.Verify(sum)
		if err != nil && k.up {
			err = k.bring(ctx, localTime, w.Artifact, k.local)
		}
		if local[sum] = err; err == nil {
			found[sum] = ""
		}
	}
	for sum, err := range local { // what was said before counts until more is known
		if why := k.last[sum]; err != nil && why != "" {
			found[sum] = why
		}
	}
	tell(maps.Clone(found))
	for _, w := range wanted {
		if sum := w.Artifact.SHA256; local[sum] != nil && ctx.Err() == nil {
			found[sum] = k.ask(ctx, w, local[sum])
			tell(maps.Clone(found))
		}
	}
	k.last = found
	return found
}

// ask asks the registries for an artefact, and says why none of them has brought it. local is why
// it is not on the machine.
func (k *artifactKeeper) ask(ctx context.Context, w config.AddonSpec, local error) string {
	var tried []string
	switch {
	case !errors.Is(local, fs.ErrNotExist):
		tried = append(tried, fmt.Sprintf("what is on this machine cannot be used: %v", local))
	case !k.up:
		tried = append(tried, "containerd, which may have it, does not run yet")
	default:
		tried = append(tried, "nobody has brought it to this machine")
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
	return fmt.Sprintf("%s: %s; bring it with `orlopctl image import`", w.Artifact, strings.Join(tried, ", "))
}

// fetch takes an artefact from a registry.
func (k *artifactKeeper) fetch(ctx context.Context, a config.Artifact, r config.AddonRegistry) error {
	from := registry.Source{Reference: a.In(r.Address), PlainHTTP: r.PlainHTTP, Username: r.Username, Password: r.Password.Reveal()}
	if !r.CA.IsZero() {
		from.CA = []byte(r.CA.PEM())
	}
	origin, err := from.Artifact()
	if err != nil {
		return err
	}
	return k.bring(ctx, registryTime, a, origin)
}

// bring takes an artefact from somewhere.
func (k *artifactKeeper) bring(ctx context.Context, most time.Duration, a config.Artifact, from artifact.Source) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	err := k.store.Fetch(ctx, a.SHA256, from)
	if err == nil {
		k.note("op", a.String()+" has come")
	}
	return err
}

// tidy lets go of what is not needed any more: in containerd what is in the folder, and, if settled
// says that nothing of before may come back, what nobody has named for long; and then in the folder
// what is not wanted. It is called when all that is wanted is there.
func (k *artifactKeeper) tidy(ctx context.Context, wanted []config.AddonSpec, settled bool) error {
	var sums, digests []string
	for _, w := range wanted {
		sums, digests = append(sums, w.Artifact.SHA256), append(digests, w.Artifact.Digest())
	}
	var problems []error
	if len(digests) > 0 && k.up {
		ctx, cancel := context.WithTimeout(ctx, localTime)
		defer cancel()
		problems = append(problems, k.local.Release(ctx, digests))
	}
	if settled {
		if k.up {
			ctx, cancel := context.WithTimeout(ctx, localTime)
			defer cancel()
			problems = append(problems, k.local.Unpin(ctx, digests, time.Now().Add(-unnamedTime)))
		}
		dropped, err := k.store.Prune(sums)
		if dropped > 0 {
			k.note("op", fmt.Sprintf("let go of what no add-on wants any more: %d files", dropped))
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// retryAfter is how long after some failures, one after the other, it is tried again.
func retryAfter(failures int) time.Duration {
	return min(retryFirst<<min(max(failures-1, 0), 10), retryMost)
}

// missing says whether something is.
func (a artifacts) missing() bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(a)), func(why string) bool { return why != "" })
}

// keepArtifacts sees to it that the artefacts of the configuration's add-ons are on the machine, as
// long as it runs.
func (m *machine) keepArtifacts(ctx context.Context) {
	if m.medium != "" {
		return
	}
	k := &artifactKeeper{
		store: artifact.Store{Dir: paths.Addons, Group: paths.UserControllers}, local: imagestore.New(m.containerd),
		note: func(kind, message string) { m.events.add("addons", kind, message) },
	}
	failures := 0
	for configs := m.config.Watch(); ; {
		now := configs.Current()
		looking, stop := context.WithCancel(ctx)
		done := make(chan time.Duration, 1)
		go func() {
			after := lookTime / 2 // after a panic, as after any failure
			_ = panics.Do("artefacts of add-ons", func() error { after = m.artifactRound(looking, k, now, failures); return nil })
			done <- after
		}()
		var again <-chan time.Time
		for waiting := true; waiting; {
			select {
			case after := <-done:
				done, again = nil, time.After(after)
				if after < lookTime {
					failures++
				}
			case <-again:
				waiting = false
			case <-configs.Changed():
				waiting, failures = false, 0
			case <-m.imported:
				waiting, failures = false, 0
			case <-ctx.Done():
				stop()
				return
			}
		}
		stop()
		if done != nil {
			<-done // one round at a time
		}
	}
}

// artifactRound does a round, and says when the next one is due.
func (m *machine) artifactRound(ctx context.Context, k *artifactKeeper, now applied, failures int) time.Duration {
	if now.config == nil { // there is none yet, or it cannot be read: that says nothing
		return lookTime
	}
	k.up = m.containerdReady() == nil
	wanted := wantedArtifacts(now.config)
	before, _ := m.artifacts.Get()
	found := k.round(ctx, wanted, func(a artifacts) {
		if is, _ := m.artifacts.Get(); !maps.Equal(is, a) {
			m.artifacts.Set(a)
		}
	})
	if ctx.Err() != nil {
		return 0
	}
	for sum, why := range found {
		if why != "" && why != before[sum] {
			k.note("failure", why)
		}
	}
	if found.missing() {
		return retryAfter(failures + 1)
	}
	upgrade, _ := m.upgrade.Get()
	settled := now.trial.IsZero() && upgrade.Undecided() == nil
	if err := k.tidy(ctx, wanted, settled); err != nil && ctx.Err() == nil {
		k.note("failure", err.Error())
		return retryMost
	}
	if !settled {
		return retryMost
	}
	return lookTime
}
