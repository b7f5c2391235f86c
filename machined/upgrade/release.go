package upgrade

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/artifact/registry"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/slot"
)

// How the machine changes to the release that its machine object names
// (docs/decisions/0095-machine-objects-on-the-node.md). The checks are the same as for an upgrade
// or rollback by an operator, but a refusal of the cluster cannot be overridden.

// Release is a version with the sources of its bundle.
type Release struct {
	Version string // the bundle must contain this version
	// Image is the OCI reference of the bundle with its digest. If it is empty, only peers have the
	// bundle.
	Image string
	// Peers are the addresses of the machines of the cluster that run the version.
	Peers []string
}

// ChangeRelease starts the upgrade or rollback to a release, and returns nil when it has started. A
// newer version is fetched from a peer or the registry. An older version must be in the other slot.
func (u *Upgrade) ChangeRelease(ctx context.Context, to Release, by string) error {
	if slot.Compare(to.Version, u.Receiver.deps.version()) < 0 {
		_, err := u.Controller.rollback(ctx, to.Version, false, by)
		return err
	}
	i, err := u.Receiver.installer(false)
	if err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	i.Only = to.Version
	f, source, err := u.Receiver.findRelease(ctx, to)
	if err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	q := u.Receiver.ask(false, by)
	q.source = source
	return u.Receiver.start(ctx, i, f, q)
}

// findRelease finds the bundle of a release: at the first peer that serves it, or in the registry.
// It also returns the source. It tries the sources with earlier failures after the other sources.
func (r *Receiver) findRelease(ctx context.Context, to Release) (f bundleSource, source string, err error) {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	all := slices.Clone(to.Peers)
	if to.Image != "" {
		all = append(all, registrySource)
	}
	var problems []error
	for _, source := range r.sources.inOrder(all) {
		f, err := r.findAt(ctx, source, to)
		if err == nil {
			return f, source, nil
		}
		problems = append(problems, err)
		r.sources.failed(source)
		if ctx.Err() != nil { // this source used up the time for all sources
			break
		}
	}
	if len(problems) == 0 {
		problems = append(problems, errors.New("no image is named, and no machine runs it; set the image of the release"))
	}
	return nil, "", fmt.Errorf("version %s was not found: %w", to.Version, errors.Join(problems...))
}

// findAt finds the bundle of a release at one source.
func (r *Receiver) findAt(ctx context.Context, source string, to Release) (bundleSource, error) {
	if source == registrySource {
		f, err := RegistrySource(r.deps.Node.Config(), r.deps.Node.Egress(), to.Image).Find(ctx, bundle.TypeArchive)
		if err != nil {
			return nil, fmt.Errorf("%w; Machine.spec.registries has the access data of a registry", err)
		}
		return f, nil
	}
	f, err := r.findPeer(ctx, source)
	if err == nil && f.bundle.Version != to.Version {
		err = fmt.Errorf("machine %s runs version %s", source, f.bundle.Version)
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// RegistrySource returns the source for an OCI reference. The credentials of the registry come from
// the configuration c (nil: no credentials), so an object of Kubernetes needs to contain none. The
// parameter e has the proxy and CAs by which the machine reaches registries.
func RegistrySource(c *config.Config, e egress.Config, image string) registry.Source {
	from := registry.Source{Reference: image, Egress: e}
	if c == nil {
		return from
	}
	host, _, _ := strings.Cut(image, "/")
	i := slices.IndexFunc(c.Machine.Spec.Registries, func(r config.ImageRegistry) bool { return string(r.Address) == host })
	if i < 0 {
		return from
	}
	r := c.Machine.Spec.Registries[i]
	from.PlainHTTP, from.Username, from.Password = r.PlainHTTP, r.Username, r.Password.Reveal()
	if !r.CA.IsZero() {
		from.CA = []byte(r.CA.PEM())
	}
	return from
}
