package extensions

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/extension"
)

// System is the running system, as far as extensions depend on it.
type System struct {
	Version, Profile, Kernel string
	// Has reports whether the system itself has a file at a path.
	Has func(path string) bool
}

// Item is an image of the configuration with its content in the store.
type Item struct {
	Image     config.Artifact
	Statement extension.Statement
	// Err says why the store has no usable extension (Store.Read).
	Err error
}

// absent reports whether the extension is missing or damaged, so that a fetch can provide it.
func (i Item) absent() bool {
	return errors.Is(i.Err, fs.ErrNotExist) || errors.Is(i.Err, artifact.ErrDamaged)
}

// Phase is the state of an extension.
type Phase string

// Phases of an extension.
const (
	Missing Phase = "missing" // the extension is not stored yet
	Stored  Phase = "stored"  // stored, for another version of the system
	Pending Phase = "pending" // the extension takes effect at the next boot
	Active  Phase = "active"
	Refused Phase = "refused"
)

// State is an extension of the machine: topic "extensions".
type State struct {
	Image   string `json:"image"`
	Name    string `json:"name,omitempty"`
	Version string `json:"version,omitempty"`
	System  string `json:"system,omitempty"` // the version of the system for which it was built
	Phase   Phase  `json:"phase"`
	Problem string `json:"problem,omitempty"`
}

// Plan returns the state of each item before the activation on a system. The items in phase Pending
// take effect. If two items exclude each other, the earlier item takes effect.
func Plan(items []Item, on System) []State {
	var all []State
	var accepted []extension.Statement
	for _, i := range items {
		s := State{Image: i.Image.String(), Name: i.Statement.Name, Version: i.Statement.Version, System: i.Statement.System}
		switch {
		case errors.Is(i.Err, fs.ErrNotExist):
			s.Phase = Missing
		case i.absent():
			s.Phase, s.Problem = Missing, i.Err.Error()
		case i.Err != nil:
			s.Phase, s.Problem = Refused, i.Err.Error()
		case i.Statement.System != on.Version:
			s.Phase = Stored
		default:
			s.Phase = Pending
			if err := fits(i.Statement, accepted, on); err != nil {
				s.Phase, s.Problem = Refused, fmt.Sprintf("extension %s: %v", i.Statement.Name, err)
			} else {
				accepted = append(accepted, i.Statement)
			}
		}
		all = append(all, s)
	}
	return all
}

// fits returns why an extension cannot take effect beside the others on a system.
func fits(s extension.Statement, others []extension.Statement, on System) error {
	if err := checkProfile(s, on.Profile); err != nil {
		return err
	}
	if s.Kernel != on.Kernel {
		return fmt.Errorf("it is for kernel %s, and this machine runs %s; build it again for this version", s.Kernel, on.Kernel)
	}
	for _, f := range s.Files {
		if on.Has(f.Path) {
			return fmt.Errorf("the system itself has the file %s; remove it from the extension", f.Path)
		}
	}
	for _, o := range others {
		if err := conflict(s, o); err != nil {
			return err
		}
	}
	return nil
}

func checkProfile(s extension.Statement, profile string) error {
	if s.Profile != profile {
		return fmt.Errorf("it is for profile %s, and this machine runs %s; build it with `imager extension -profile profiles/%[2]s.yaml`", s.Profile, profile)
	}
	return nil
}

// conflict returns why two extensions exclude each other.
func conflict(s, o extension.Statement) error {
	if s.Name == o.Name {
		return fmt.Errorf("Machine.spec.extensions.images names it twice for version %s; remove one of them", s.System)
	}
	if file := overlapping(s.Files, o.Files); file != "" {
		return fmt.Errorf("extension %s has the file %s, too; remove one of the two extensions", o.Name, file)
	}
	for _, r := range s.Runtimes {
		if slices.ContainsFunc(o.Runtimes, func(p extension.Runtime) bool { return p.Handler == r.Handler }) {
			return fmt.Errorf("extension %s has the runtime handler %s, too; remove one of the two extensions", o.Name, r.Handler)
		}
	}
	for _, one := range s.Services {
		for _, two := range o.Services {
			if one.Name == two.Name || one.User == two.User && one.User != 0 {
				return fmt.Errorf("its service %s has the name or the user %d of service %s of extension %s; remove one of the two extensions", one.Name, one.User, two.Name, o.Name)
			}
		}
	}
	return nil
}

// overlapping returns a path in others that excludes a path in files: both are equal, or one is a
// parent directory of the other. It returns "" if there is no such path. Two extensions can have
// thousands of files each, so the time is linear.
func overlapping(files, others []extension.File) string {
	taken := map[string]string{} // from each path in others, and its parents, to the path
	for _, f := range others {
		for at := f.Path; at != "/" && taken[at] == ""; at = path.Dir(at) {
			taken[at] = f.Path
		}
	}
	for _, f := range files {
		if other := taken[f.Path]; other != "" {
			return other
		}
		for at := path.Dir(f.Path); at != "/"; at = path.Dir(at) {
			if taken[at] == at {
				return at
			}
		}
	}
	return ""
}

// Problem returns why an extension for a version does not take effect; empty if all do.
func Problem(states []State, version string) string {
	for _, s := range states {
		if s.Problem != "" && s.System == version && s.Phase != Stored {
			return s.Problem
		}
	}
	return ""
}

// Check returns the check of the extensions; nil without extensions.
func Check(states []State) *api.HealthCheck {
	if len(states) == 0 {
		return nil
	}
	check := &api.HealthCheck{Name: "system-extensions", Ok: true, Since: timestamppb.New(time.Time{})}
	var details []string
	for _, s := range states {
		switch {
		case s.Problem != "":
			check.Ok = false
			details = append(details, s.Problem)
		case s.Phase == Missing:
			details = append(details, "fetching "+s.Image)
		case s.Phase == Pending:
			details = append(details, fmt.Sprintf("%s %s takes effect at the next boot (`orlopctl reboot`)", s.Name, s.Version))
		case s.Phase == Active:
			details = append(details, s.Name+" "+s.Version+" is active")
		}
	}
	check.Detail = strings.Join(details, "; ")
	return check
}

// CheckUpgrade returns an error if an upgrade from one version to another would lose an extension:
// each item must be usable, and each extension for the present version needs an extension with the
// same name for the next version.
func CheckUpgrade(items []Item, from, to, profile string) error {
	if err := checkUsable(items); err != nil {
		return err
	}
	for _, i := range items {
		if i.Statement.System != from {
			continue
		}
		if !slices.ContainsFunc(items, func(o Item) bool {
			return o.Statement.Name == i.Statement.Name && o.Statement.System == to && o.Statement.Profile == profile
		}) {
			return fmt.Errorf("extension %s is not stored for version %s; add its image to Machine.spec.extensions.images and wait until `orlopctl get extensions` shows it as stored, or remove the extension", i.Statement.Name, to)
		}
	}
	return nil
}

// CheckRollback returns an error if the items of a saved configuration are not complete.
func CheckRollback(items []Item) error { return checkUsable(items) }

// checkUsable returns an error for the first item that is not usable.
func checkUsable(items []Item) error {
	for _, i := range items {
		if i.absent() {
			return fmt.Errorf("extension %s is not stored; wait until `orlopctl get extensions` shows it, or remove it from Machine.spec.extensions.images", i.Image)
		}
		if i.Err != nil {
			return fmt.Errorf("%w; remove it from Machine.spec.extensions.images, or replace it", i.Err)
		}
	}
	return nil
}

// Changes returns a line for each operation that leads to a configuration with these items: images
// to fetch, and activations at the next boot. active are the extensions that are active.
func Changes(items []Item, on System, active []State) (lines []string) {
	want := Plan(items, on)
	for _, s := range want {
		isActive := slices.ContainsFunc(active, func(a State) bool { return a.Image == s.Image })
		switch {
		case s.Phase == Missing:
			lines = append(lines, "fetch extension "+s.Image+"; it takes effect at a boot, not now")
		case s.Phase == Pending && !isActive:
			lines = append(lines, fmt.Sprintf("activate extension %s %s at the next boot", s.Name, s.Version))
		}
	}
	for _, a := range active {
		if !slices.ContainsFunc(want, func(s State) bool { return s.Image == a.Image }) {
			lines = append(lines, fmt.Sprintf("deactivate extension %s %s at the next boot", a.Name, a.Version))
		}
	}
	return lines
}
