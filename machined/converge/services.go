package converge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// reportUnusedResolvers reports the resolvers of the machine that pods do not use, once per change.
// A machine without an address has no resolvers; neither their loss nor their return is a change.
func (r *Reconciler) reportUnusedResolvers(c *config.Config, state network.State) {
	if r.deps.Domains.InMemory || len(nodeplan.Addresses(c, state)) == 0 {
		return
	}
	unused := nodeplan.UnusedResolvers(c, state)
	if slices.Equal(unused, r.unusedResolvers) {
		return
	}
	r.unusedResolvers = unused
	for _, line := range unused {
		r.deps.Event("network", "failure", line)
	}
}

// applyServices writes the files of the services and then sets the services that should run; the
// service manager performs the operations.
func (r *Reconciler) applyServices(_ context.Context, g goal, _ func() error) error {
	w := g.node()
	r.enterHold(w, g.state)
	switch w.Services.Hold {
	case nodeplan.HoldNothing:
	case nodeplan.HoldRefused:
		return errors.Join(w.Services.Problem, r.deps.Domains.Services.Set(w.Services.Now(nil)))
	case nodeplan.HoldNoAddress, nodeplan.HoldRemoved, nodeplan.HoldVolumes:
		running := r.deps.Domains.Services.Services()
		if now := w.Services.Now(running); len(supervise.Diff(running, now)) > 0 {
			return r.deps.Domains.Services.Set(now)
		}
		return nil
	default:
		return r.deps.Domains.Services.Set(w.Services.Now(nil))
	}
	if err := prepareKubernetes(w.Node); err != nil {
		return err
	}
	if err := r.deps.ConfigureRegistries(g.config, nodeplan.Egress(g.config)); err != nil {
		return err
	}
	if w.Services.Problem != nil {
		return w.Services.Problem
	}
	r.deps.Enter("running", "")
	r.deps.Domains.Firewall.SetStarted()
	if r.deps.Stopping() { // a shutdown has begun, and decides which services run
		return nil
	}
	return r.deps.Domains.Services.Set(w.Services.Now(nil))
}

// enterHold sets the step of the boot to the reason for which services are held back.
func (r *Reconciler) enterHold(w nodeplan.Want, state network.State) {
	switch w.Services.Hold {
	case nodeplan.HoldNoNode, nodeplan.HoldRefused:
		return // the errors are reported
	case nodeplan.HoldVolumes:
		r.deps.Enter("services", "the volumes: "+w.Services.Problem.Error())
	case nodeplan.HoldExposed:
		problem, _ := r.deps.Domains.Firewall.Problem().Get()
		r.deps.Enter("services", "the nftables rules: "+problem)
	case nodeplan.HoldNoAddress:
		r.deps.Enter("services", "an address: "+strings.Join(append(state.Problems, "none on any link yet"), "; "))
		return
	case nodeplan.HoldNotJoined:
		r.deps.Enter("joining", strings.TrimSuffix("the cluster: "+r.deps.MemberProblem(), ": "))
	case nodeplan.HoldRemoved: // membership.Worker stops the running services in order
		r.deps.Enter("removed", r.deps.MemberProblem()+"; reset it, or give it another ticket (`orlopctl nodes add`)")
	case nodeplan.HoldNothing:
	}
}

// noAddressTime is the time for which services continue with their known addresses after the
// machine has lost its address. The renewal of a lease takes less time. During a longer loss, the
// services would fail and restart, at full load, until the loss ends.
const noAddressTime = time.Minute

// prepareKubernetes writes the files that the services of a node read at their start. It is
// idempotent.
func prepareKubernetes(n nodeplan.Node) error {
	text, err := json.MarshalIndent(n.Spec, "", "  ")
	if err != nil {
		return fmt.Errorf("node: cannot describe: %w", err)
	}
	for _, dir := range []string{filepath.Dir(paths.NodeSpec), filepath.Dir(paths.ContainerdConfig), paths.CNIConfig} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("node: cannot create directory: %w", err)
		}
	}
	if err := renameio.WriteFile(paths.NodeSpec, text, 0o644); err != nil {
		return fmt.Errorf("node: cannot write its description: %w", err)
	}
	if n.Spec.External.Network {
		if err := emptyPluginsOnce(paths.ContainerdConfig, paths.ExternalCNIPlugins); err != nil {
			return fmt.Errorf("pod network: cannot create the directory for its plugins: %w", err)
		}
	}
	if err := renameio.WriteFile(paths.ContainerdConfig, n.Containerd, 0o644); err != nil {
		return fmt.Errorf("containerd: cannot write its configuration: %w", err)
	}
	return nil
}

// emptyPluginsOnce creates the directory into which an external pod network writes its plugins.
// containerd runs the plugins as root, and the directory is on a disk. So the first call after a
// boot empties it, and only plugins that a pod wrote in this boot run. The configuration of
// containerd is in memory, so its absence shows that the machine has just booted.
func emptyPluginsOnce(configuration, plugins string) error {
	if _, err := os.Stat(configuration); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.RemoveAll(plugins); err != nil {
		return err
	}
	return os.MkdirAll(plugins, 0o755)
}
