package main

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"

	"github.com/orlop-os/orlop/imager/debian"
)

// noAssertion is SPDX's value for an unknown field.
const noAssertion = "NOASSERTION"

// sbom collects packages and their relations. Every package occurs once, even with several
// containers.
type sbom struct {
	doc  *v2_3.Document
	seen map[common.ElementID]bool
	// programs are the executables' identifiers by name.
	programs map[string]common.ElementID
}

// writeSBOM writes an SPDX 2.3 document: the image contains the executables, the Debian packages
// and the archives of container images in the profile; each executable depends on the Go modules in
// its build information.
func writeSBOM(path string, m *Manifest, built map[string]string, images []HashedFile, debs *Archive, epoch int64) error {
	s := sbom{seen: map[common.ElementID]bool{}, programs: map[string]common.ElementID{}, doc: &v2_3.Document{
		SPDXVersion: v2_3.Version, DataLicense: v2_3.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName:      fmt.Sprintf("orlop-%s-%s", m.Release.Profile, m.Release.Version),
		DocumentNamespace: "https://orlop.dev/spdx/" + names.String() + "/" + m.Root[:64],
		CreationInfo: &v2_3.CreationInfo{
			Created:  time.Unix(epoch, 0).UTC().Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "orlop-imager-" + m.Release.Version}},
		},
	}}
	image := s.add("image", "orlop", m.Release.Version, "pkg:generic/orlop@"+m.Release.Version)
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
		if err := s.addProgram(image, name, built[name], m.Release.Version); err != nil {
			return err
		}
	}
	s.relate(image, common.TypeRelationshipContains, s.add("program", "pause", m.Release.Version, "pkg:oci/pause"))
	if err := s.addStatic(debs.Lock); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := json.Write(s.doc, f, json.Indent("  ")); err != nil {
		return fmt.Errorf("%s: cannot write: %w", path, err)
	}
	return f.Close()
}

// addProgram adds an executable and the modules that are linked into it.
func (s *sbom) addProgram(image common.ElementID, name, file, version string) error {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return fmt.Errorf("%s: cannot tell which modules are in it: %w", name, err)
	}
	program := s.add("program", name, version, "pkg:golang/"+info.Path)
	s.programs[name] = program
	s.relate(image, common.TypeRelationshipContains, program)
	goID := s.add("go", "stdlib", info.GoVersion, "pkg:golang/stdlib@"+info.GoVersion)
	s.relate(program, common.TypeRelationshipDependsOn, goID)
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		id := s.add("go", d.Path, d.Version, "pkg:golang/"+d.Path+"@"+d.Version)
		s.relate(program, common.TypeRelationshipDependsOn, id)
	}
	return nil
}

// addStatic adds the C libraries that are part of programs (runc).
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

// addDebian adds a pinned package of Debian.
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

// add adds a package once and returns its identifier.
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
