package machinetest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/bundle"
)

// releaseKey returns the key that has signed the version of every fake machine.
var releaseKey = sync.OnceValues(bundle.NewKey)

// sbom is the bill of materials of every fake machine.
var sbom = []byte(`{"spdxVersion":"SPDX-2.3","packages":[{"name":"libc6","versionInfo":"2.41"}]}` + "\n")

// ReadSBOM implements api.UpgradeServer. It sends the document in two chunks.
func (s *upgradeService) ReadSBOM(_ *api.ReadSBOMRequest, stream grpc.ServerStreamingServer[api.ReadSBOMResponse]) error {
	statement, err := signedStatement()
	if err != nil {
		return err
	}
	return errors.Join(
		stream.Send(&api.ReadSBOMResponse{Statement: statement, Chunk: sbom[:10]}),
		stream.Send(&api.ReadSBOMResponse{Chunk: sbom[10:]}),
	)
}

// partOf returns the description of a part of a bundle with this content.
func partOf(content []byte) bundle.Part {
	sum := sha256.Sum256(content)
	return bundle.Part{SHA256: hex.EncodeToString(sum[:]), Size: int64(len(content))}
}

// signedStatement returns the signed statement of the version of every fake machine.
func signedStatement() ([]byte, error) {
	key, err := releaseKey()
	if err != nil {
		return nil, err
	}
	other := partOf([]byte("not served"))
	payload, err := json.Marshal(bundle.Statement{Version: "1.2.3", Profile: "qemu", Root: "root", RootImage: other, Packed: other, UKI: other, SBOM: partOf(sbom)})
	if err != nil {
		return nil, err
	}
	return bundle.SignPayload(bundle.TypePayload, payload, key)
}

// WriteRelease writes a release to a directory: orlop.bundle, provenance.intoto.jsonl and keys.pem.
// The public key in keys.pem verifies the bundle, the provenance, and the version of every fake
// machine.
func WriteRelease(dir, version string) error {
	key, err := releaseKey()
	if err != nil {
		return err
	}
	public, err := key.PublicPEM()
	if err != nil {
		return err
	}
	file, subject, err := bundleOf(dir, version, key)
	if err != nil {
		return err
	}
	attested, err := bundle.SealProvenance(bundle.Provenance{
		Type: bundle.ProvenanceType, PredicateType: bundle.PredicateType, Subject: subject,
		Predicate: bundle.Predicate{
			BuildDefinition: bundle.BuildDefinition{
				BuildType:            bundle.BuildType,
				ExternalParameters:   bundle.BuildParameters{Profile: "qemu", Version: version, Programs: []string{"init"}},
				ResolvedDependencies: []bundle.Resource{{Digest: map[string]string{bundle.DigestGitCommit: "5d8e1c6f3b0a7f2e9d4c8b7a6f5e4d3c2b1a0f9e"}}},
			},
			RunDetails: bundle.RunDetails{Builder: bundle.BuilderID{ID: bundle.Builder, Version: map[string]string{"go": "go1.26.11"}}},
		},
	}, key)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "orlop.bundle"), file, 0o600),
		os.WriteFile(filepath.Join(dir, "provenance.intoto.jsonl"), append(attested, '\n'), 0o600),
		os.WriteFile(filepath.Join(dir, "keys.pem"), public, 0o600),
	)
}

// bundleOf returns a bundle and the digests of its parts. It also writes each part to a file in
// dir.
func bundleOf(dir, version string, key bundle.Key) (file []byte, subject []bundle.Resource, err error) {
	pack, err := zstd.NewWriter(nil, zstd.WithWindowSize(bundle.Window))
	if err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	root := []byte("a root of version " + version)
	source := bundle.Source{Version: version, Profile: "qemu", Root: "root", Time: time.Unix(1, 0)}
	for _, f := range []struct {
		name    string
		file    *string
		content []byte
	}{{"root.img", &source.RootImage, root}, {"root.img.zst", &source.Packed, pack.EncodeAll(root, nil)}, {"orlop.efi", &source.UKI, []byte("a kernel")}, {"sbom.spdx.json", &source.SBOM, sbom}} {
		*f.file = filepath.Join(dir, f.name)
		if err := os.WriteFile(*f.file, f.content, 0o600); err != nil {
			return nil, nil, err
		}
		subject = append(subject, bundle.Resource{Name: f.name, Digest: map[string]string{bundle.DigestSHA256: partOf(f.content).SHA256}})
	}
	envelope, err := source.Seal(key)
	if err != nil {
		return nil, nil, err
	}
	var out bytes.Buffer
	err = bundle.Write(&out, source, envelope)
	return out.Bytes(), subject, err
}
