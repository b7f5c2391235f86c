package main

import (
	"bytes"
	"crypto/sha256"
	gobuildinfo "debug/buildinfo"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"

	"github.com/orlop-os/orlop/imager/debian"
	"github.com/orlop-os/orlop/pkg/buildinfo"
)

// sbomFile is the artifact with the bill of materials.
const sbomFile = "sbom.spdx.json"

// noAssertion is SPDX's value for an unknown field.
const noAssertion = "NOASSERTION"

// sbom collects packages and their relations. Each package occurs once, even if several programs
// contain it.
type sbom struct {
	doc  *v2_3.Document
	seen map[common.ElementID]bool
	// programs are the identifiers of the executables, by name.
	programs map[string]common.ElementID
}

// writeSBOM writes an SPDX 2.3 document. The image contains the executables, the Debian packages,
// and the archives of container images in the profile. Each executable has its digest, and depends
// on the Go modules in its build information. The document itself is a part of the root, so it
// cannot have the digests of the root and of the boot image.
func writeSBOM(path string, r buildinfo.Release, built map[string]string, images []HashedFile, debs *Archive) error {
	s := sbom{seen: map[common.ElementID]bool{}, programs: map[string]common.ElementID{}, doc: &v2_3.Document{
		SPDXVersion: v2_3.Version, DataLicense: v2_3.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName: fmt.Sprintf("orlop-%s-%s", r.Profile, r.Version),
		CreationInfo: &v2_3.CreationInfo{
			Created:  time.Unix(r.BuildTime, 0).UTC().Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "orlop-imager-" + r.Version}},
		},
	}}
	image := s.add("image", "orlop", r.Version, "pkg:generic/orlop@"+r.Version)
	s.relate("DOCUMENT", common.TypeRelationshipDescribe, image)
	for _, name := range sortedKeys(debs.used) {
		p := debs.used[name]
		s.relate(image, common.TypeRelationshipContains, s.addDebian(p, debs.Lock.Suite))
	}
	for _, h := range images {
		id := s.add("images", h.Name, h.SHA256, "pkg:generic/"+h.Name+"?checksum=sha256:"+h.SHA256)
		s.doc.Packages[len(s.doc.Packages)-1].PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: h.SHA256}}
		s.relate(image, common.TypeRelationshipContains, id)
	}
	for _, name := range sortedKeys(built) {
		if err := s.addProgram(image, name, built[name], r.Version); err != nil {
			return err
		}
	}
	s.relate(image, common.TypeRelationshipContains, s.add("program", "pause", r.Version, "pkg:oci/pause"))
	if err := s.addStatic(debs.Lock); err != nil {
		return err
	}
	if err := s.setNamespace(); err != nil {
		return err
	}
	text, err := s.text()
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// setNamespace sets the namespace of the document, which SPDX requires to be unique. It ends with
// the digest of the document without a namespace.
func (s *sbom) setNamespace() error {
	text, err := s.text()
	if err != nil {
		return err
	}
	s.doc.DocumentNamespace = fmt.Sprintf("https://orlop.dev/spdx/%s/%x", names, sha256.Sum256(text))
	return nil
}

// text returns the document as JSON.
func (s *sbom) text() ([]byte, error) {
	var out bytes.Buffer
	if err := json.Write(s.doc, &out, json.Indent("  ")); err != nil {
		return nil, fmt.Errorf("bill of materials: cannot write: %w", err)
	}
	return out.Bytes(), nil
}

// addProgram adds an executable with its digest, and the modules that it contains. The module of
// its main package is among them if it is from another repository, as for containerd.
func (s *sbom) addProgram(image common.ElementID, name, file, version string) error {
	info, err := gobuildinfo.ReadFile(file)
	if err != nil {
		return fmt.Errorf("%s: cannot tell which modules are in it: %w", name, err)
	}
	content, err := hashFile(name, file)
	if err != nil {
		return err
	}
	program := s.add("program", name, version, "pkg:golang/"+info.Path)
	s.doc.Packages[len(s.doc.Packages)-1].PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: content.SHA256}}
	s.programs[name] = program
	s.relate(image, common.TypeRelationshipContains, program)
	goID := s.add("go", "stdlib", info.GoVersion, "pkg:golang/stdlib@"+info.GoVersion)
	s.relate(program, common.TypeRelationshipDependsOn, goID)
	for _, m := range linkedInto(info) {
		id := s.add("go", m.Path, m.Version, moduleURL(m))
		s.relate(program, common.TypeRelationshipDependsOn, id)
	}
	return nil
}

// addStatic adds the C libraries that are linked into programs with C code (runc).
func (s *sbom) addStatic(lock debian.Lock) error {
	for _, p := range programs {
		if !p.CGO {
			continue
		}
		for _, l := range staticLibraries {
			library, err := lock.Find(l)
			if err != nil {
				return err
			}
			id := s.addDebian(library, lock.Suite)
			s.relate(s.programs[p.Name], common.TypeRelationshipStaticLink, id)
		}
	}
	return nil
}

// addDebian adds a pinned Debian package and returns its identifier.
func (s *sbom) addDebian(p debian.Package, suite string) common.ElementID {
	known := len(s.doc.Packages)
	id := s.add("deb", p.Name, p.Version, p.PURL(suite))
	for _, added := range s.doc.Packages[known:] {
		added.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: p.SHA256}}
	}
	return id
}

// notID matches characters that SPDX does not allow in identifiers.
var notID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// add returns the identifier of a package. It adds the package to the document if it is not there
// yet.
func (s *sbom) add(kind, name, version, purl string) common.ElementID {
	id := common.ElementID(notID.ReplaceAllString("Package-"+kind+"-"+name+"-"+version, "-"))
	if s.seen[id] {
		return id
	}
	s.seen[id] = true
	s.doc.Packages = append(s.doc.Packages, &v2_3.Package{
		PackageName: name, PackageSPDXIdentifier: id, PackageVersion: version, PackageDownloadLocation: noAssertion,
		PackageLicenseConcluded: noAssertion, PackageLicenseDeclared: noAssertion, PackageCopyrightText: noAssertion,
		PackageExternalReferences: []*v2_3.PackageExternalReference{{Category: common.CategoryPackageManager, RefType: "purl", Locator: purl}},
	})
	return id
}

func (s *sbom) relate(a common.ElementID, how string, b common.ElementID) {
	s.doc.Relationships = append(s.doc.Relationships, &v2_3.Relationship{
		RefA: common.MakeDocElementID("", string(a)), RefB: common.MakeDocElementID("", string(b)), Relationship: how,
	})
}
