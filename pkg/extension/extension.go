// Package extension reads and writes the artifacts of extensions: signed images with kernel
// modules, firmware, programs and services for one version of the system
// (docs/decisions/0105-extensions.md).
//
// An extension is an OCI artifact with two layers, in this order:
//
//	TypeStatement  a DSSE envelope over a Statement
//	TypeImage      an erofs image with its dm-verity tree (package verity)
//
// The package decides whether a statement is valid. It mounts nothing and accesses no registry. A
// reader must trust only a statement from Verify, and must read the image only through dm-verity.
package extension

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/verity"
)

// Media types of an extension.
const (
	// TypeExtension is the artifact type of the OCI manifest.
	TypeExtension = "application/vnd.orlop.extension.v1"
	TypeStatement = "application/vnd.orlop.extension.statement.v1+json"
	TypeImage     = "application/vnd.orlop.extension.image.v1"
	// TypePayload is the type of the signed payload: the JSON form of a Statement.
	TypePayload = "application/vnd.orlop.extension.v1+json"
)

// Limits of an extension.
const (
	MaxManifest  = 64 << 10 // bytes of the OCI manifest
	MaxStatement = 2 << 20  // bytes of the envelope, which is held in memory
	MaxImage     = 1 << 30  // bytes of the image with its tree
	MaxFiles     = 4096
	maxLoad      = 128
	maxRuntimes  = 8
	maxServices  = 8
	maxArguments = 64
	maxText      = 255      // characters of a path or an argument
	minMemory    = 4 << 20  // bytes of memory of a service
	maxMemory    = 64 << 30 // bytes of memory of a service
	maxProcesses = 4096
)

// FirstUser to LastUser are the user IDs that services of extensions can have besides 0.
const (
	FirstUser = 200
	LastUser  = 299
)

// Statement is the signed description of an extension.
type Statement struct {
	Name    string `json:"name"`    // DNS label of at most 32 characters
	Version string `json:"version"` // version of the extension
	System  string `json:"system"`  // the only version of the system for which it is valid
	Profile string `json:"profile"` // the profile of that version
	Kernel  string `json:"kernel"`  // release of the kernel for which its modules were built
	// Root is the dm-verity description of the image (verity.Params.String).
	Root  string      `json:"root"`
	Image bundle.Part `json:"image"` // file system and hash tree
	// Files lists all files and symbolic links, sorted by path. Directories are implied.
	Files    []File    `json:"files"`
	Load     []string  `json:"load,omitempty"` // modules to load when the extension is activated
	Runtimes []Runtime `json:"runtimes,omitempty"`
	Services []Service `json:"services,omitempty"`
}

// File is a regular file with its digest, or a symbolic link with its target.
type File struct {
	Path   string `json:"path"` // absolute, in one of the directories of Allowed
	Size   int64  `json:"size,omitempty"`
	SHA256 string `json:"sha256,omitempty"` // lower-case hexadecimal
	Target string `json:"target,omitempty"`
}

// Runtime is a runtime handler of containerd, which a RuntimeClass names.
type Runtime struct {
	Handler string `json:"handler"` // DNS label
	// Type determines the shim in /usr/bin: io.containerd.runsc.v1 is containerd-shim-runsc-v1.
	Type string `json:"type"`
	// Config is the configuration file of the shim; empty if it has none.
	Config string `json:"config,omitempty"`
}

// Service is a supervised process.
type Service struct {
	Name string   `json:"name"` // DNS label; the full name of the service is ext-NAME
	Args []string `json:"args"` // the first is the path of a program of the extension
	// User is the user and group ID: FirstUser to LastUser, or 0.
	User         uint32   `json:"user"`
	Capabilities []string `json:"capabilities,omitempty"` // such as NET_ADMIN; none with user 0
	Memory       int64    `json:"memory"`                 // limit in bytes
	Processes    int      `json:"processes"`              // limit of processes and threads
	// State requests a directory on DATA that belongs to User (StateDir).
	State bool `json:"state,omitempty"`
}

// ServiceName returns the name of the service among the services of the system.
func (s Service) ServiceName() string { return "ext-" + s.Name }

// StateDir returns the directory on DATA of a service with State.
func (s Service) StateDir() string { return paths.ExtensionState + "/" + s.Name }

var (
	nameForm    = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)
	versionForm = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.~+_-]{0,63}$`)
	digestForm  = regexp.MustCompile(`^[0-9a-f]{64}$`)
	moduleForm  = regexp.MustCompile(`^[0-9A-Za-z_-]{1,55}$`)
	typeForm    = regexp.MustCompile(`^io\.containerd\.([a-z0-9-]{1,32})\.v([0-9]{1,2})$`)
)

// OwnDir returns the directory for files of an extension that belong to no other directory.
func OwnDir(name string) string { return "/usr/share/orlop/extensions/" + name }

// ModulesDir returns the directory of an extension with its kernel modules and their index.
func ModulesDir(name, kernel string) string {
	return "/usr/lib/modules/" + kernel + "/extensions/" + name
}

// CDIDir is the directory of the CDI specifications of extensions.
const CDIDir = "/usr/share/cdi"

// Allowed returns the directories in which an extension can have files, each with a slash at its
// end. The system does not look for its own configuration in these directories.
func (s Statement) Allowed() []string {
	return []string{
		"/usr/bin/", "/usr/sbin/", "/usr/libexec/", "/usr/lib/x86_64-linux-gnu/", "/usr/lib/firmware/", CDIDir + "/",
		OwnDir(s.Name) + "/", ModulesDir(s.Name, s.Kernel) + "/",
	}
}

// HasCDI reports whether the extension contains CDI specifications.
func (s Statement) HasCDI() bool {
	return slices.ContainsFunc(s.Files, func(f File) bool { return strings.HasPrefix(f.Path, CDIDir+"/") })
}

// HasModules reports whether the extension contains kernel modules.
func (s Statement) HasModules() bool {
	return s.has(ModulesDir(s.Name, s.Kernel) + "/modules.dep")
}

// has reports whether the extension contains a path.
func (s Statement) has(name string) bool {
	return slices.ContainsFunc(s.Files, func(f File) bool { return f.Path == name })
}

// String returns, for example, "gvisor 20260905 for 0.2.0".
func (s Statement) String() string { return s.Name + " " + s.Version + " for " + s.System }

// Check rejects an invalid statement.
func (s Statement) Check() error {
	if !nameForm.MatchString(s.Name) {
		return fmt.Errorf("%q is not a name: 1 to 32 lower-case letters, digits and hyphens expected", s.Name)
	}
	for _, v := range []struct{ what, text string }{{"version", s.Version}, {"version of the system", s.System}, {"profile", s.Profile}, {"kernel release", s.Kernel}} {
		if !versionForm.MatchString(v.text) {
			return fmt.Errorf("%q is not a %s", v.text, v.what)
		}
	}
	params, err := verity.Parse(s.Root)
	if err != nil {
		return err
	}
	switch {
	case !digestForm.MatchString(s.Image.SHA256) || s.Image.Size <= 0:
		return fmt.Errorf("digest %q of %d bytes of its image is invalid", s.Image.SHA256, s.Image.Size)
	case s.Image.Size > MaxImage:
		return fmt.Errorf("its image has %d MiB, and at most %d MiB are permitted", s.Image.Size>>20, MaxImage>>20)
	case params.HashStart*verity.BlockSize > uint64(s.Image.Size):
		return errors.New("its hash tree begins after the end of its image")
	}
	return errors.Join(s.checkFiles(), s.checkLoad(), s.checkRuntimes(), s.checkServices())
}

// checkFiles rejects paths outside the permitted directories, unsorted and duplicate paths, and
// invalid digests and link targets.
func (s Statement) checkFiles() error {
	if len(s.Files) == 0 || len(s.Files) > MaxFiles {
		return fmt.Errorf("it has %d files: 1 to %d expected", len(s.Files), MaxFiles)
	}
	allowed, directories := s.Allowed(), map[string]bool{}
	for i, f := range s.Files {
		if err := checkPath(f.Path); err != nil {
			return err
		}
		if !slices.ContainsFunc(allowed, func(dir string) bool { return strings.HasPrefix(f.Path, dir) }) {
			return fmt.Errorf("%s: is outside of the permitted directories %s", f.Path, strings.Join(allowed, ", "))
		}
		if i > 0 && f.Path <= s.Files[i-1].Path {
			return fmt.Errorf("%s: occurs twice, or the paths are not sorted", f.Path)
		}
		for dir := path.Dir(f.Path); dir != "/"; dir = path.Dir(dir) {
			directories[dir] = true
		}
		link := f.Target != ""
		switch {
		case link && (f.SHA256 != "" || f.Size != 0):
			return fmt.Errorf("%s: is a link and a file", f.Path)
		case link && (len(f.Target) > maxText || !printable(f.Target)):
			return fmt.Errorf("%s: the target of the link is invalid", f.Path)
		case !link && (!digestForm.MatchString(f.SHA256) || f.Size < 0):
			return fmt.Errorf("%s: digest %q of %d bytes is invalid", f.Path, f.SHA256, f.Size)
		}
	}
	for _, f := range s.Files {
		if directories[f.Path] {
			return fmt.Errorf("%s: is a file and a directory", f.Path)
		}
	}
	return nil
}

func checkPath(name string) error {
	if len(name) > maxText || !path.IsAbs(name) || path.Clean(name) != name || !printable(name) {
		return fmt.Errorf("%q is not an absolute path of at most %d characters without a detour", shortened(name), maxText)
	}
	return nil
}

// printable reports whether a text has only printable characters, and none that has a special
// meaning in mount options.
func printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || strings.ContainsRune(`\:,"`, r) })
}

func shortened(text string) string {
	if len(text) > maxText {
		return text[:maxText] + "…"
	}
	return text
}

func (s Statement) checkLoad() error {
	if len(s.Load) > maxLoad {
		return fmt.Errorf("it loads %d modules: at most %d expected", len(s.Load), maxLoad)
	}
	for _, name := range s.Load {
		if !moduleForm.MatchString(name) {
			return fmt.Errorf("%q is not the name of a kernel module", shortened(name))
		}
	}
	return nil
}

func (s Statement) checkRuntimes() error {
	if len(s.Runtimes) > maxRuntimes {
		return fmt.Errorf("it has %d runtime handlers: at most %d expected", len(s.Runtimes), maxRuntimes)
	}
	for i, r := range s.Runtimes {
		shim := r.Shim()
		switch {
		case !nameForm.MatchString(r.Handler) || r.Handler == "runc":
			return fmt.Errorf("%q is not the name of another runtime handler", shortened(r.Handler))
		case slices.ContainsFunc(s.Runtimes[:i], func(o Runtime) bool { return o.Handler == r.Handler }):
			return fmt.Errorf("runtime handler %s occurs twice", r.Handler)
		case shim == "":
			return fmt.Errorf("runtime handler %s: %q is not a type such as io.containerd.runsc.v1", r.Handler, shortened(r.Type))
		case !s.has(shim):
			return fmt.Errorf("runtime handler %s: %s is not in the extension", r.Handler, shim)
		case r.Config != "" && !s.has(r.Config):
			return fmt.Errorf("runtime handler %s: %s is not in the extension", r.Handler, shortened(r.Config))
		}
	}
	return nil
}

// Shim returns the path of the shim, which follows from Type by the naming rule of containerd;
// empty for an invalid type.
func (r Runtime) Shim() string {
	m := typeForm.FindStringSubmatch(r.Type)
	if m == nil {
		return ""
	}
	return "/usr/bin/containerd-shim-" + m[1] + "-v" + m[2]
}

func (s Statement) checkServices() error {
	if len(s.Services) > maxServices {
		return fmt.Errorf("it has %d services: at most %d expected", len(s.Services), maxServices)
	}
	for i, one := range s.Services {
		if !nameForm.MatchString(one.Name) {
			return fmt.Errorf("%q is not the name of a service", shortened(one.Name))
		}
		if slices.ContainsFunc(s.Services[:i], func(o Service) bool { return o.Name == one.Name }) {
			return fmt.Errorf("service %s occurs twice", one.Name)
		}
		if err := s.checkService(one); err != nil {
			return fmt.Errorf("service %s: %w", one.Name, err)
		}
	}
	return nil
}

func (s Statement) checkService(one Service) error {
	switch {
	case len(one.Args) == 0 || len(one.Args) > maxArguments || !s.has(one.Args[0]):
		return errors.New("its program is not in the extension")
	case slices.ContainsFunc(one.Args, func(a string) bool { return len(a) > maxText || strings.ContainsRune(a, 0) }):
		return fmt.Errorf("an argument has more than %d characters or is invalid", maxText)
	case one.User != 0 && (one.User < FirstUser || one.User > LastUser):
		return fmt.Errorf("user %d: 0, or %d to %d expected", one.User, FirstUser, LastUser)
	case one.User == 0 && len(one.Capabilities) > 0:
		return errors.New("user 0 has all capabilities: a list has no effect")
	case one.Memory < minMemory || one.Memory > maxMemory:
		return fmt.Errorf("%d bytes of memory: %d MiB to %d GiB expected", one.Memory, minMemory>>20, maxMemory>>30)
	case one.Processes < 1 || one.Processes > maxProcesses:
		return fmt.Errorf("%d processes: 1 to %d expected", one.Processes, maxProcesses)
	}
	for _, c := range one.Capabilities {
		if _, known := capabilities[c]; !known {
			return fmt.Errorf("%q is not a capability that a service can have", shortened(c))
		}
	}
	return nil
}

// Trust are the keys that can sign extensions. An extension is valid if enough release keys, or an
// extension key, have signed it.
type Trust struct {
	// Release are the release keys. If it has no keys, no signature of a release key is accepted.
	Release bundle.Trust
	// Keys are the extension keys in the system image and in the configuration.
	Keys bundle.Trust
}

// Verify returns the statement of an envelope that enough trusted keys have signed.
func Verify(envelope []byte, t Trust) (Statement, error) {
	if len(envelope) > MaxStatement {
		return Statement{}, fmt.Errorf("its statement has more than %d KiB", MaxStatement>>10)
	}
	var problems []error
	for _, trust := range []bundle.Trust{t.Release, t.Keys} {
		if len(trust.Keys) == 0 {
			continue
		}
		payload, err := bundle.VerifyPayload(envelope, TypePayload, trust)
		if err == nil {
			return parse(payload)
		}
		problems = append(problems, err)
	}
	if len(problems) == 0 {
		return Statement{}, errors.New("this machine trusts no key for extensions: add one to Machine.spec.extensions.keys")
	}
	return Statement{}, fmt.Errorf("%w; sign it with a release key, or add its key to Machine.spec.extensions.keys", errors.Join(problems...))
}

func parse(payload []byte) (Statement, error) {
	var s Statement
	strict := json.NewDecoder(bytes.NewReader(payload))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&s); err != nil {
		return Statement{}, fmt.Errorf("cannot parse its statement: %w", err)
	}
	if err := s.Check(); err != nil {
		return Statement{}, fmt.Errorf("its statement is invalid: %w", err)
	}
	return s, nil
}

// Seal signs a statement with each of the keys and returns the envelope. The same input gives the
// same bytes.
func Seal(s Statement, keys ...bundle.Key) ([]byte, error) {
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("extension %s: %w", s.Name, err)
	}
	payload, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return bundle.SignPayload(TypePayload, payload, keys...)
}
