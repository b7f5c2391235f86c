package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/orlop-os/orlop/imager/debian"
	"github.com/orlop-os/orlop/imager/kernel"
	"github.com/orlop-os/orlop/imager/ociarchive"
	"github.com/orlop-os/orlop/imager/pause"
	"github.com/orlop-os/orlop/imager/secureboot"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/pkg/slot/esp"
	"github.com/orlop-os/orlop/pkg/verity"
)

// Options are the inputs of a build.
type Options struct {
	Profile *Profile
	// The build itself sets the kernel, the disk sizes and other fields of Release that it
	// computes.
	Release buildinfo.Release
	Pins    Pins
	Commit  string // of the source, for the provenance; empty if it is unknown
	Out     string // directory for the artifacts
	// Cache is the directory for downloads and for files that are derived from them. Builds share
	// it.
	Cache string
	Log   io.Writer
	// Programs maps names of executables to compiled files. The build uses these files instead of
	// compiling the executables.
	Programs map[string]string
	// Inputs are files of the source that the manifest lists with their digests, in addition to the
	// profile's files.
	Inputs []string
	// Kubectl is the path at which the build writes kubectl for operators. If it is empty, the
	// build does not compile kubectl.
	Kubectl string
}

// Build makes the artifacts of one profile. The fields besides Options pass data between stages.
type Build struct {
	Options

	archive *Archive
	kernel  *kernel.Kernel
	tree    Tree
	params  verity.Params
	pieces  bootPieces
	uki     []byte            // boot image of a disk
	built   map[string]string // files of the programs, by name
	inputs  []HashedFile
	tools   map[string]string // versions of the tools on this computer
	ca      []byte            // operator CA certificate; nil in a generic image
	// statement is the signed statement of the upgrade bundle; nil without a bundle. A disk
	// contains it, because a machine needs it to serve its running version to peers.
	statement []byte
	// signer signs the boot loader and the boot images; nil without Secure Boot.
	signer       *secureboot.Signer
	signedLoader []byte // nil before the first call of loader
}

// stage is one step of a build, with its name in the progress output.
type stage struct {
	name string
	run  func(*Build) error
}

// stages are the stages of a build, in order.
var stages = []stage{
	{"inputs", (*Build).readInputs},
	{"programs", (*Build).buildPrograms},
	{"kernel", (*Build).unpackKernel},
	{"root tree", (*Build).planRoot},
	{"software bill of materials", (*Build).writeSBOM}, // before the root image, which contains it
	{"root image", (*Build).makeRoot},
	{"unified kernel image", (*Build).makeUKI},
	{"upgrade bundle", (*Build).makeBundle}, // before the boot media, which contain its statement
	{"boot image with its root", (*Build).makeNetboot},
	{"medium", (*Build).makeISO},
	{"disk image", (*Build).makeDisk},
	{"compressed disk image", (*Build).compressDisk},
	{"provenance and manifest", (*Build).describe}, // last: both have the digests of the artifacts
}

// Run runs all stages and prints their durations.
func (b *Build) Run() error {
	if err := os.MkdirAll(b.work(""), 0o755); err != nil {
		return err
	}
	start := time.Now()
	for _, s := range stages {
		began := time.Now()
		if err := s.run(b); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Fprintf(b.Log, "%6.1f s  %s\n", time.Since(began).Seconds(), s.name)
	}
	fmt.Fprintf(b.Log, "%6.1f s  %s\n", time.Since(start).Seconds(), "in all")
	return nil
}

// work returns a path in the directory for intermediate files.
func (b *Build) work(name string) string { return filepath.Join(b.Out, "work", name) }

func (b *Build) out(name string) string { return filepath.Join(b.Out, name) }

// inputName returns the name of an input file in the manifest.
func inputName(file string) string { return path.Clean(filepath.ToSlash(file)) }

// readInputs reads the inputs and their digests. It is the first stage, because a build with a
// missing input should fail before the slow stages.
func (b *Build) readInputs() error {
	var err error
	if b.ca, err = operatorCA(b.Profile.OperatorCA); err != nil {
		return err
	}
	if p := b.Profile.SecureBoot; p != nil {
		s, err := p.signer(b.Out)
		if err != nil {
			return err
		}
		b.signer = &s
	}
	files := slices.Concat(b.Inputs, b.Profile.Images, b.Profile.SecureBoot.inputs())
	for _, f := range []string{b.Profile.OperatorCA, b.Profile.ReleaseKeys, b.Profile.ExtensionKeys} {
		if f != "" {
			files = append(files, f)
		}
	}
	for _, f := range files {
		h, err := hashFile(inputName(f), f)
		if err != nil {
			return err
		}
		b.inputs = append(b.inputs, h)
	}
	lock, err := debian.ReadLock(lockFile)
	if err != nil {
		return err
	}
	b.archive = NewArchive(lock, b.Cache)
	if b.pieces.stub, err = b.archive.file(loaderPackage, loaderStub); err != nil {
		return err
	}
	b.tools, err = toolVersions()
	return err
}

// buildPrograms builds the image's programs, and kubectl for the user.
func (b *Build) buildPrograms() error {
	b.built = map[string]string{}
	all := slices.Clone(programs)
	if b.Kubectl != "" {
		all = append(all, kubectl)
	}
	for _, p := range all {
		began := time.Now()
		file, ready := b.Programs[p.Name]
		if !ready {
			file = b.work(filepath.Join("bin", p.Name))
			if p.Name == kubectl.Name {
				file = b.Kubectl
			}
			if err := b.buildProgram(p, file); err != nil {
				return err
			}
		}
		info, err := os.Stat(file)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		if p.Name != kubectl.Name {
			b.built[p.Name] = file
		}
		fmt.Fprintf(b.Log, "          %6.1f s  %6.1f MiB  %s\n", time.Since(began).Seconds(), mib(info.Size()), p.Name)
	}
	return nil
}

// buildProgram builds a program. It prepares the sysroot for a program with C code.
func (b *Build) buildProgram(p Program, file string) error {
	if !p.CGO {
		return p.Build(file, nil)
	}
	root, err := newSysroot(b.archive, b.Cache)
	if err != nil {
		return err
	}
	c, err := root.environment(b.work("cc"))
	if err != nil {
		return err
	}
	return p.Build(file, c)
}

func (b *Build) unpackKernel() error {
	p, deb, err := b.archive.deb(b.Profile.Kernel.Package)
	if err != nil {
		return err
	}
	b.kernel, err = kernel.Unpack(deb, p.SHA256, filepath.Join(b.Cache, "kernel"))
	if err != nil {
		return err
	}
	b.Release.Kernel = b.kernel.Release
	return nil
}

// planRoot plans every file of the root except the bill of materials, which writeSBOM adds.
func (b *Build) planRoot() error {
	b.tree, b.Release.PauseImage = Tree{}, pause.Reference
	b.Release.Signatures = b.Profile.Signatures
	if days := b.Profile.SupportDays; days > 0 {
		b.Release.Expires = b.Release.BuildTime + int64(days)*24*60*60
	}
	b.Release.Disk = layout.Sizes{ESP: uint64(b.Profile.Disk.ESP), Root: uint64(b.Profile.Disk.Root)}
	if err := addPrograms(b.tree, b.built); err != nil {
		return err
	}
	if err := addDebian(b.tree, b.archive); err != nil {
		return err
	}
	k := b.Profile.Kernel
	files, err := b.kernel.Select(slices.Concat(k.Modules, k.Initramfs, k.Drivers))
	if err != nil {
		return err
	}
	modules, err := b.kernel.Tree(files, b.work("modules"))
	if err != nil {
		return err
	}
	if err := addModules(b.tree, b.kernel.Release, modules); err != nil {
		return err
	}
	if b.ca != nil {
		if err := b.tree.Add(paths.OperatorCA, Node{Mode: 0o644, Data: b.ca, From: part}); err != nil {
			return err
		}
	}
	if err := b.addPCRKey(); err != nil {
		return err
	}
	if b.Profile.ReleaseKeys != "" {
		keys, _, err := b.Profile.trust()
		if err != nil {
			return err
		}
		if err := b.tree.Add(paths.ReleaseKeys, Node{Mode: 0o644, Data: keys, From: part}); err != nil {
			return err
		}
	}
	if err := b.addExtensionKeys(); err != nil {
		return err
	}
	program, err := pause.Compile(b.work(""))
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	if err := ociarchive.Write(&archive, pause.Image(program, time.Unix(b.Release.BuildTime, 0))); err != nil {
		return err
	}
	if err := addImages(b.tree, archive.Bytes(), b.Profile.Images); err != nil {
		return err
	}
	return addSystem(b.tree, b.Release)
}

// addExtensionKeys adds the public keys that verify extensions, if the profile names them.
func (b *Build) addExtensionKeys() error {
	if b.Profile.ExtensionKeys == "" {
		return nil
	}
	keys, err := os.ReadFile(b.Profile.ExtensionKeys)
	if err == nil {
		_, err = bundle.ParseTrust(keys)
	}
	if err != nil {
		return fmt.Errorf("extensionKeys: %s: %w", b.Profile.ExtensionKeys, err)
	}
	return b.tree.Add(paths.ExtensionKeys, Node{Mode: 0o644, Data: keys, From: part})
}

// makeRoot writes the root, checks it, and adds its hash tree.
func (b *Build) makeRoot() (err error) {
	b.params, err = makeSealed(b.tree, b.work("root"), b.out("root.img"), b.Profile.Root, b.Release.BuildTime)
	return err
}

// makeSealed writes a tree to the directory dir, checks the directory, and makes an image of it
// with a hash tree. It returns the parameters of the hash tree. epoch is the time of the files, in
// seconds since 1970.
func makeSealed(t Tree, dir, image string, format RootProfile, epoch int64) (p verity.Params, err error) {
	if err := t.Write(dir); err != nil {
		return p, err
	}
	if err := CheckNoInterpreter(dir); err != nil {
		return p, err
	}
	if err := makeErofs(dir, image, format, epoch); err != nil {
		return p, err
	}
	// The salt has to be reproducible and different for each image. It is derived from the digest
	// of the image.
	plain, err := hashFile("image", image)
	if err != nil {
		return p, err
	}
	salt := sha256.Sum256([]byte(plain.SHA256))
	return verity.Format(image, salt[:])
}

// makeDisk writes the disk image, if the profile requests the disk image or its compressed form.
func (b *Build) makeDisk() error {
	if !slices.Contains(b.Profile.Outputs, outputRaw) && !slices.Contains(b.Profile.Outputs, outputZst) {
		return nil
	}
	loader, err := b.loader()
	if err != nil {
		return err
	}
	keys, settings, err := b.enrollment()
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"/" + esp.Loader: loader,
		path.Join("/", slot.EntriesDir, slot.Entry{Version: b.Release.Version}.Name()): b.uki,
		"/" + esp.LoaderConfig: []byte(settings),
	}
	for name, content := range keys {
		files[path.Join("/", esp.KeysDir, name)] = content
	}
	if b.statement != nil {
		files["/"+esp.Statement(b.Release.Version)] = b.statement
	}
	return makeDisk(b.out(outputRaw), diskPlan{
		Sizes: b.Release.Disk, RootHash: b.params.RootHash, PartUUID: b.params.PartUUID(), Root: b.out("root.img"),
		Epoch: b.Release.BuildTime, Work: b.work(""), ESP: files,
	})
}

func (b *Build) compressDisk() error {
	if !slices.Contains(b.Profile.Outputs, outputZst) {
		return nil
	}
	return compress(b.out(outputRaw), b.out(outputZst), forDownload)
}

// writeSBOM writes the bill of materials, and adds it to the root. At this stage, the archive has
// recorded all packages of the image. The package of the boot loader is among them, because
// readInputs has read the loader stub.
func (b *Build) writeSBOM() error {
	var images []HashedFile
	for _, h := range b.inputs {
		if slices.ContainsFunc(b.Profile.Images, func(file string) bool { return inputName(file) == h.Name }) {
			images = append(images, h)
		}
	}
	if err := writeSBOM(b.out(sbomFile), b.Release, b.built, images, b.archive); err != nil {
		return err
	}
	return b.tree.Add(paths.SBOM, Node{Mode: 0o644, Source: b.out(sbomFile), From: part})
}

// makeBundle writes the version as an upgrade bundle, if the profile requests it.
func (b *Build) makeBundle() error {
	if !slices.Contains(b.Profile.Outputs, outputBundle) {
		return nil
	}
	keys, err := b.Profile.keys()
	if err != nil {
		return err
	}
	packed := b.work("root.img.zst")
	if err := compress(b.out("root.img"), packed, forMachine); err != nil {
		return err
	}
	f, err := os.Create(b.out(outputBundle))
	if err != nil {
		return err
	}
	defer f.Close()
	source := bundle.Source{
		Version: b.Release.Version, Profile: b.Release.Profile, MinimumVersion: b.Profile.MinimumVersion, Epoch: b.Release.Epoch, Root: b.params.String(),
		RootImage: b.out("root.img"), UKI: b.out("orlop.efi"), SBOM: b.out(sbomFile), Time: time.Unix(b.Release.BuildTime, 0), Packed: packed,
	}
	if b.statement, err = source.Seal(keys...); err != nil {
		return err
	}
	if err := bundle.Write(f, source, b.statement); err != nil {
		return err
	}
	b.tellSignatures()
	return f.Close()
}

// tellSignatures prints a note if machines with this version could not serve the version to peers.
// A machine verifies the bundle before it serves it, and trusts only the release keys of its own
// image.
func (b *Build) tellSignatures() {
	_, trust, err := b.Profile.trust()
	if err == nil {
		_, err = bundle.Verify(b.statement, trust)
	}
	if err != nil {
		fmt.Fprintf(b.Log, "          note: machines with this version cannot serve the version to peers, because its releaseKeys do not verify its bundle: %v\n", err)
	}
}

// trust returns the public keys that verify later versions, as the text of the file and in parsed
// form.
func (p *Profile) trust() ([]byte, bundle.Trust, error) {
	text, err := os.ReadFile(p.ReleaseKeys)
	if err != nil {
		return nil, bundle.Trust{}, err
	}
	trust, err := bundle.ParseTrust(text)
	if err == nil {
		trust, err = trust.WithThreshold(max(1, p.Signatures))
	}
	if err != nil {
		return nil, trust, fmt.Errorf("%s: %w", p.ReleaseKeys, err)
	}
	return text, trust, nil
}

// keys returns the private keys that sign the bundle.
func (p *Profile) keys() ([]bundle.Key, error) {
	var all []bundle.Key
	for _, file := range p.signers() {
		key, err := readKey(file)
		if err != nil {
			return nil, err
		}
		all = append(all, key)
	}
	return all, nil
}

// readKey reads a private signing key.
func readKey(file string) (bundle.Key, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return bundle.Key{}, err
	}
	key, err := bundle.ParseKey(text)
	if err != nil {
		return key, fmt.Errorf("%s: %w", file, err)
	}
	return key, nil
}

// describe writes the manifest and prints it as tables. If there is a bundle, it also writes the
// provenance.
func (b *Build) describe() error {
	m := &Manifest{
		Release: b.Release, Root: b.params.String(), RootPartition: b.params.PartUUID().String(), CommandLine: b.commandLine(),
		GoVersion: runtime.Version(), Pins: b.Pins, Tools: b.tools, Executables: b.tree.Executables(), Inputs: b.inputs, Boot: b.pieces.parts(),
	}
	for _, name := range sortedKeys(b.archive.used) {
		p := b.archive.used[name]
		m.Inputs = append(m.Inputs, HashedFile{Name: p.Name + ".deb", Version: p.Version, SHA256: p.SHA256})
	}
	var err error
	if m.Parts, err = parts(b.tree); err != nil {
		return err
	}
	for _, name := range sortedKeys(b.built) {
		h, err := hashFile(name, b.built[name])
		if err != nil {
			return err
		}
		m.Programs = append(m.Programs, h)
	}
	if m.Artifacts, err = b.artifacts(); err != nil {
		return err
	}
	if slices.Contains(b.Profile.Outputs, outputBundle) {
		if err := b.writeProvenance(m.Artifacts); err != nil {
			return err
		}
		h, err := hashFile(provenanceFile, b.out(provenanceFile))
		if err != nil {
			return err
		}
		m.Artifacts = append(m.Artifacts, h)
	}
	if err := m.Write(b.out("manifest.json")); err != nil {
		return err
	}
	return m.Print(b.Log)
}

// artifacts returns the artifacts that are complete before the provenance, with their digests.
func (b *Build) artifacts() (all []HashedFile, err error) {
	for _, name := range append([]string{"orlop.efi", "root.img", sbomFile}, b.Profile.Outputs...) {
		h, err := hashFile(name, b.out(name))
		if err != nil {
			return nil, err
		}
		all = append(all, h)
	}
	return all, nil
}

// sourceTime returns the time of all files in the image, in seconds since 1970. It is the variable
// SOURCE_DATE_EPOCH or, if the variable is not set, the time of the last commit.
func sourceTime() (int64, error) {
	text, from := os.Getenv("SOURCE_DATE_EPOCH"), "SOURCE_DATE_EPOCH"
	if text == "" {
		out, err := exec.Command("git", "log", "-1", "--format=%ct").Output()
		if err != nil {
			return 0, errors.New("the time of the source is unknown, because git knows no last commit; set SOURCE_DATE_EPOCH")
		}
		text, from = string(bytes.TrimSpace(out)), "git"
	}
	t, err := strconv.ParseInt(text, 10, 64)
	if err != nil || t < 0 {
		return 0, fmt.Errorf("%s: %q is not a time in seconds since 1970", from, text)
	}
	return t, nil
}
