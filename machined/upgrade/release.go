package upgrade

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/registry"
	"github.com/orlop-os/orlop/pkg/slot"
)

// How the machine changes to the release that its own object of Kubernetes names
// (docs/decisions/0095-machine-objects-on-the-node.md). The checks are the same as for an
// operator's upgrade or rollback. A refusal of the cluster cannot be overridden.

// Release is a version with the places that have its bundle.
type Release struct {
	Version string // the only version that is accepted
	// Image is the OCI reference of the bundle with its digest; empty: only peers have it.
	Image string
	// Peers are the addresses of machines of the cluster that run the version.
	Peers []string
}

// ChangeRelease starts a release, and returns when the release is accepted. A newer version comes
// from a peer or the registry; an older version has to be in the other slot.
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
	f, err := u.Receiver.findRelease(ctx, to)
	if err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return u.Receiver.start(ctx, i, f, u.Receiver.ask(false, by))
}

// findRelease finds the bundle of a release: at the first peer that serves it, or in the registry.
func (r *Receiver) findRelease(ctx context.Context, to Release) (bundleSource, error) {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	var problems []error
	for _, address := range to.Peers {
		f, err := r.findPeer(ctx, address)
		if err == nil && f.bundle.Version != to.Version {
			err = fmt.Errorf("machine %s runs version %s", address, f.bundle.Version)
		}
		if err == nil {
			return f, nil
		}
		problems = append(problems, err)
	}
	if to.Image != "" {
		f, err := RegistrySource(r.deps.Node.Config(), r.deps.Node.Egress(), to.Image).Find(ctx, bundle.TypeArchive)
		if err == nil {
			return f, nil
		}
		problems = append(problems, fmt.Errorf("%w; Machine.spec.registries has the access data of a registry", err))
	}
	if len(problems) == 0 {
		problems = append(problems, errors.New("no image is named, and no machine runs it; set the image of the release"))
	}
	return nil, fmt.Errorf("version %s was not found: %w", to.Version, errors.Join(problems...))
}

// RegistrySource returns the artifact of an OCI reference, with the access data of its registry
// from the configuration (nil for none). Access data belong to a registry, so an object of
// Kubernetes contains none. e says how registries are reached.
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
