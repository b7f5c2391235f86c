package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/imager/debian"
	"github.com/orlop-os/orlop/imager/kernel"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/extension"
	"github.com/orlop-os/orlop/pkg/kernel/kmod"
)

// Extension is the definition of an extension: the content of a file
// extensions/NAME/extension.yaml.
type Extension struct {
	Name    string `yaml:"name"`
	Version string `yaml:"version"` // of the content
	// Programs are Go programs, built from source.
	Programs []ExtensionProgram `yaml:"programs"`
	// Modules are patterns that select modules of the profile's kernel (kernel.Select). The
	// extension omits modules that the image contains.
	Modules []string `yaml:"modules"`
	// Load are the modules that a machine loads when it activates the extension.
	Load []string `yaml:"load"`
	// Packages are files of pinned Debian packages. Libraries are the packages with the shared
	// libraries that these files need. The extension omits libraries that the image contains.
	Packages  []ExtensionFile `yaml:"packages"`
	Libraries []string        `yaml:"libraries"`
	// Files are local files: firmware, CDI specifications, configuration. Their paths are relative
	// to the definition.
	Files    []ExtensionFile    `yaml:"files"`
	Links    []ExtensionLink    `yaml:"links"`
	Runtimes []ExtensionRuntime `yaml:"runtimes"`
	Services []ExtensionService `yaml:"services"`
}

// ExtensionProgram is the definition of a Go program; see Program.
type ExtensionProgram struct {
	Path    string   `yaml:"path"` // of the executable in the extension
	Module  string   `yaml:"module"`
	Package string   `yaml:"package"`
	Tags    string   `yaml:"tags"`
	Stamp   string   `yaml:"stamp"` // Stamp.Module
	Vars    []string `yaml:"vars"`  // Stamp.Vars
}

// ExtensionFile is a file that the build copies into the extension. Package is empty for a local
// file.
type ExtensionFile struct {
	Package    string `yaml:"package"`
	From       string `yaml:"from"`
	To         string `yaml:"to"`
	Executable bool   `yaml:"executable"`
}

// ExtensionLink is a symbolic link.
type ExtensionLink struct {
	Path   string `yaml:"path"`
	Target string `yaml:"target"`
}

// ExtensionRuntime has the fields of extension.Runtime.
type ExtensionRuntime struct {
	Handler string `yaml:"handler"`
	Type    string `yaml:"type"`
	Config  string `yaml:"config"`
}

// ExtensionService has the fields of extension.Service.
type ExtensionService struct {
	Name         string   `yaml:"name"`
	Args         []string `yaml:"args"`
	User         uint32   `yaml:"user"`
	Capabilities []string `yaml:"capabilities"`
	Memory       Size     `yaml:"memory"`
	Processes    int      `yaml:"processes"`
	State        bool     `yaml:"state"`
}

// ReadExtension reads a definition. Errors contain file, line and field.
func ReadExtension(file string) (*Extension, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read extension: %w", err)
	}
	e := new(Extension)
	if err := decodeOne(text, "an extension", e); err != nil {
		return nil, inFile(file, err)
	}
	if e.Name == "" || e.Version == "" {
		return nil, fmt.Errorf("%s: name and version are needed", file)
	}
	return e, nil
}

// extensionRoot is the format of the image. Compression halves the size of programs and modules,
// and machines read them rarely.
var extensionRoot = RootProfile{Compression: "lz4hc", ClusterSize: 64 << 10}

// ExtensionBuild makes the artifacts of an extension for a single version and profile of the
// system: NAME.img, NAME.json (the statement), NAME.dsse.json (the signed statement), NAME.oci.tar
// and NAME.digest.
type ExtensionBuild struct {
	Definition *Extension
	Dir        string // of the definition
	Profile    *Profile
	Release    buildinfo.Release
	Keys       []bundle.Key
	Name       string // of the artifact, with a tag; empty: write makes it from the statement
	Out, Cache string
	// Programs maps paths in the extension to compiled files. The build uses these files instead of
	// compiling the programs.
	Programs map[string]string
	Log      io.Writer

	archive *Archive
	kernel  *kernel.Kernel
	tree    Tree
	base    Tree // files of the image from Debian packages
}

func (b *ExtensionBuild) work(name string) string { return filepath.Join(b.Out, "work", name) }

func (b *ExtensionBuild) out(suffix string) string {
	return filepath.Join(b.Out, b.Definition.Name+suffix)
}

// Run makes the artifacts and returns the digest of the OCI manifest, "sha256:…".
func (b *ExtensionBuild) Run() (string, error) {
	if err := os.MkdirAll(b.work(""), 0o755); err != nil {
		return "", err
	}
	lock, err := debian.ReadLock(lockFile)
	if err != nil {
		return "", err
	}
	b.archive, b.tree, b.base = NewArchive(lock, b.Cache), Tree{}, Tree{}
	p, deb, err := b.archive.deb(b.Profile.Kernel.Package)
	if err != nil {
		return "", err
	}
	if b.kernel, err = kernel.Unpack(deb, p.SHA256, filepath.Join(b.Cache, "kernel")); err != nil {
		return "", err
	}
	for _, add := range []func() error{b.addPrograms, b.addPackages, b.addFiles, b.addModules} {
		if err := add(); err != nil {
			return "", fmt.Errorf("extension %s: %w", b.Definition.Name, err)
		}
	}
	s, err := b.makeImage()
	if err != nil {
		return "", fmt.Errorf("extension %s: %w", b.Definition.Name, err)
	}
	return b.write(s)
}

func (b *ExtensionBuild) addPrograms() error {
	for _, p := range b.Definition.Programs {
		file, ready := b.Programs[p.Path]
		if !ready {
			file = b.work(filepath.Join("bin", path.Base(p.Path)))
			program := Program{Name: path.Base(p.Path), Module: p.Module, Package: p.Package, Tags: p.Tags, Stamp: Stamp{p.Stamp, p.Vars}}
			if err := program.Build(file, nil); err != nil {
				return err
			}
		}
		if err := b.tree.Add(p.Path, Node{Mode: 0o755, Source: file, From: p.Package}); err != nil {
			return err
		}
	}
	return nil
}

// addPackages adds the files of Debian packages, and the libraries that they need and the image
// does not contain.
func (b *ExtensionBuild) addPackages() error {
	if len(b.Definition.Packages) == 0 {
		return nil
	}
	if err := addDebian(b.base, b.archive); err != nil {
		return err
	}
	var executables []string
	for _, f := range b.Definition.Packages {
		data, err := b.archive.file(f.Package, f.From)
		if err != nil {
			return err
		}
		if err := b.tree.Add(f.To, Node{Mode: f.mode(), Data: data, From: f.Package}); err != nil {
			return err
		}
		if f.Executable {
			executables = append(executables, f.To)
		}
	}
	return addLibrariesOf(b.tree, b.base, b.archive, executables, b.Definition.Libraries)
}

func (f ExtensionFile) mode() os.FileMode {
	if f.Executable {
		return 0o755
	}
	return 0o644
}

func (b *ExtensionBuild) addFiles() error {
	for _, f := range b.Definition.Files {
		data, err := os.ReadFile(filepath.Join(b.Dir, f.From))
		if err != nil {
			return err
		}
		if err := b.tree.Add(f.To, Node{Mode: f.mode(), Data: data, From: f.From}); err != nil {
			return err
		}
	}
	for _, l := range b.Definition.Links {
		if l.Target == "" {
			return fmt.Errorf("%s: the link has no target", l.Path)
		}
		if err := b.tree.Add(l.Path, Node{Target: l.Target, From: "links"}); err != nil {
			return err
		}
	}
	return nil
}

// addModules adds the modules that the image does not contain, and their index.
func (b *ExtensionBuild) addModules() error {
	if len(b.Definition.Modules) == 0 {
		return nil
	}
	k := b.Profile.Kernel
	image, err := b.kernel.Select(slices.Concat(k.Modules, k.Initramfs, k.Drivers))
	if err != nil {
		return err
	}
	all, err := b.kernel.Select(b.Definition.Modules)
	if err != nil {
		return err
	}
	own := slices.DeleteFunc(slices.Clone(all), func(file string) bool { return slices.Contains(image, file) })
	if len(own) == 0 {
		return fmt.Errorf("the image of profile %s has all its modules", b.Profile.Name)
	}
	// A module of the extension can depend on a module of the image, so depmod gets both.
	files, err := b.kernel.Tree(slices.Compact(slices.Sorted(slices.Values(slices.Concat(image, own)))), b.work("modules"))
	if err != nil {
		return err
	}
	dir := extension.ModulesDir(b.Definition.Name, b.kernel.Release)
	for _, file := range own {
		if err := b.tree.Add(path.Join(dir, file), Node{Mode: 0o644, Source: files[file], From: "kernel modules"}); err != nil {
			return err
		}
	}
	for _, index := range []string{"modules.dep", "modules.alias", "modules.softdep"} {
		text, err := os.ReadFile(files[index])
		if err != nil {
			return err
		}
		if err := b.tree.Add(path.Join(dir, index), Node{Mode: 0o644, Data: linesOf(index, text, own), From: "kernel modules"}); err != nil {
			return err
		}
	}
	return nil
}

// linesOf returns the lines of an index of depmod that describe these module files. text is the
// content of the index.
func linesOf(index string, text []byte, files []string) []byte {
	names := map[string]bool{}
	for _, file := range files {
		names[kmod.NameOf(file)] = true
	}
	out := []byte{}
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line))
		about := ""
		switch {
		case len(fields) == 0 || strings.HasPrefix(fields[0], "#"):
			continue
		case index == "modules.dep":
			about = strings.TrimSuffix(fields[0], ":")
		case index == "modules.alias":
			about = fields[len(fields)-1]
		case len(fields) > 1: // softdep NAME pre: …
			about = fields[1]
		}
		if names[kmod.NameOf(about)] {
			out = append(out, line...)
		}
	}
	return out
}

// makeImage writes the image with its hash tree, and returns the statement about it.
func (b *ExtensionBuild) makeImage() (s extension.Statement, err error) {
	image := b.out(".img")
	params, err := makeSealed(b.tree, b.work("root"), image, extensionRoot, b.Release.BuildTime)
	if err != nil {
		return s, err
	}
	sealed, err := hashFile("image", image)
	if err != nil {
		return s, err
	}
	d := b.Definition
	s = extension.Statement{
		Name: d.Name, Version: d.Version, System: b.Release.Version, Profile: b.Profile.Name, Kernel: b.kernel.Release,
		Root: params.String(), Image: bundle.Part{SHA256: sealed.SHA256, Size: sealed.Bytes}, Load: d.Load,
	}
	for _, r := range d.Runtimes {
		s.Runtimes = append(s.Runtimes, extension.Runtime(r))
	}
	for _, one := range d.Services {
		s.Services = append(s.Services, extension.Service{
			Name: one.Name, Args: one.Args, User: one.User, Capabilities: one.Capabilities, Memory: int64(one.Memory), Processes: one.Processes, State: one.State,
		})
	}
	if s.Files, err = b.files(); err != nil {
		return s, err
	}
	return s, s.Check()
}

// files describes the files of the tree, sorted by path.
func (b *ExtensionBuild) files() (all []extension.File, err error) {
	for _, name := range b.tree.Names() {
		n := b.tree[name]
		switch {
		case n.Dir:
		case n.Target != "":
			all = append(all, extension.File{Path: name, Target: n.Target})
		default:
			data, err := n.Read()
			if err != nil {
				return nil, err
			}
			sum := sha256.Sum256(data)
			all = append(all, extension.File{Path: name, Size: int64(len(data)), SHA256: hex.EncodeToString(sum[:])})
		}
	}
	return all, nil
}

// write signs the statement and writes the artifacts. It returns the digest of the OCI manifest.
func (b *ExtensionBuild) write(s extension.Statement) (string, error) {
	envelope, err := extension.Seal(s, b.Keys...)
	if err != nil {
		return "", err
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return "", err
	}
	err = errors.Join(os.WriteFile(b.out(".json"), append(text, '\n'), 0o644), os.WriteFile(b.out(".dsse.json"), envelope, 0o644))
	if err != nil {
		return "", err
	}
	image, err := os.Open(b.out(".img"))
	if err != nil {
		return "", err
	}
	defer image.Close()
	to, err := os.Create(b.out(".oci.tar"))
	if err != nil {
		return "", err
	}
	defer to.Close()
	name := cmp.Or(b.Name, fmt.Sprintf("extensions.example.com/%s:%s-%s", s.Name, s.Version, s.System))
	digest, err := extension.Write(to, name, time.Unix(b.Release.BuildTime, 0), envelope, s.Image, image)
	if err != nil {
		return "", err
	}
	if err := to.Close(); err != nil {
		return "", err
	}
	reference, _, _ := cutTag(name)
	reference += "@" + digest
	fmt.Fprintf(b.Log, "%s, profile %s, kernel %s: %d files, %.1f MiB\n%s\n", s, s.Profile, s.Kernel, len(s.Files), mib(s.Image.Size), reference)
	return digest, os.WriteFile(b.out(".digest"), []byte(reference+"\n"), 0o644)
}

// cutTag splits the name of an artifact into its repository and its tag. ok is false if the name
// has no tag.
func cutTag(name string) (repository, tag string, ok bool) {
	i := strings.LastIndex(name, ":")
	if i < 0 || strings.Contains(name[i:], "/") {
		return name, "", false
	}
	return name[:i], name[i+1:], true
}

// buildExtension is the command `imager extension`.
func buildExtension(args []string) error {
	flags := flag.NewFlagSet("imager extension", flag.ContinueOnError)
	file := flags.String("f", "", "the definition, a YAML `file`")
	profilePath := flags.String("profile", filepath.Join("profiles", "qemu.yaml"), "the profile of the system, a YAML `file`")
	out := flags.String("out", "", "`directory` for the artifacts")
	cache := flags.String("cache", defaultCache, "`directory` for downloads, shared by builds")
	version := flags.String("version", "", "`version` of the system for which the extension is made, instead of the version in the file VERSION")
	name := flags.String("name", "", "`name` of the artifact with a tag, such as registry.example.com/gvisor:1")
	var keys []string
	ready := map[string]string{}
	flags.Func("key", "the private key, a `file`, instead of the profile's (may be repeated)", func(s string) error { keys = append(keys, s); return nil })
	flags.Func("program", "`path=file`: take a ready executable instead of building it (for development; may be repeated)", func(s string) error {
		to, from, ok := strings.Cut(s, "=")
		if !ok {
			return errors.New("path=file expected")
		}
		ready[to] = from
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *file == "" || *out == "" || flags.NArg() > 0 {
		return errors.New("-f and -out are required, and other arguments are not allowed")
	}
	definition, err := ReadExtension(*file)
	if err != nil {
		return err
	}
	profile, err := ReadProfile(*profilePath)
	if err != nil {
		return err
	}
	r, err := sourceRelease(*profilePath, profile.Name, *version, -1)
	if err != nil {
		return err
	}
	b := &ExtensionBuild{
		Definition: definition, Dir: filepath.Dir(*file), Profile: profile, Release: r, Name: *name, Out: *out, Cache: *cache, Programs: ready, Log: os.Stdout,
	}
	if len(keys) == 0 {
		keys = profile.signers()
	}
	for _, k := range keys {
		key, err := readKey(k)
		if err != nil {
			return err
		}
		b.Keys = append(b.Keys, key)
	}
	_, err = b.Run()
	return err
}
