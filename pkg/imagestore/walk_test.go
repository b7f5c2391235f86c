package imagestore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// library is a content store in memory.
type library map[string][]byte

func (l library) read(digest string) ([]byte, error) {
	if text, there := l[digest]; there {
		return text, nil
	}
	return nil, fmt.Errorf("%s: %w", digest, fs.ErrNotExist)
}

func (l library) put(text string) string {
	d := digest.FromString(text).String()
	l[d] = []byte(text)
	return d
}

// image adds an image with a platform in its configuration and a layer of this media type.
func (l library) image(platform, layerType string) string {
	config := l.put(fmt.Sprintf(`{%s,"rootfs":{"type":"layers","diff_ids":["sha256:l"]}}`, platform))
	return l.put(fmt.Sprintf(`{"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q},"layers":[{"mediaType":%q}]}`, config, layerType))
}

// index adds an index of entries: a digest, and its platform, if any.
func (l library) index(entries ...[2]string) string {
	var all []string
	for _, e := range entries {
		platform := ""
		if e[1] != "" {
			platform = `,"platform":` + e[1]
		}
		all = append(all, fmt.Sprintf(`{"digest":%q%s}`, e[0], platform))
	}
	return l.put(`{"manifests":[` + strings.Join(all, ",") + `]}`)
}

const (
	isAMD64 = `"os":"linux","architecture":"amd64"`
	isARM64 = `"os":"linux","architecture":"arm64","variant":"v8"`
	layered = "application/vnd.oci.image.layer.v1.tar"
)

// TestChoose: choose finds only the image for this machine, in all forms of indexes.
func TestChoose(t *testing.T) {
	l := library{}
	amd, arm := l.image(isAMD64, layered), l.image(isARM64, layered)
	upper := l.image(`"os":"Linux","architecture":"x86_64"`, layered)
	silent, windows := l.image(`"author":"unknown"`, layered), l.image(`"os":"windows","architecture":"amd64"`, layered)
	attests := l.image(`"os":"unknown","architecture":"unknown"`, provenance)
	artifact := l.put(fromFlux)
	lost := "sha256:" + strings.Repeat("0", 64)
	unconfigured := l.put(`{"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"` + lost + `"},"layers":[]}`)
	said := func(p string) string { return "{" + p + "}" }
	for _, c := range []struct {
		name, target, want string // want is empty if choose finds no image
		others             string
		fails              error
	}{
		{name: "a manifest", target: amd, want: amd},
		{name: "a manifest for another platform", target: arm, others: "[linux/arm64/v8]"},
		{name: "a manifest for Windows", target: windows, others: "[windows/amd64]"},
		{name: "a platform with another spelling", target: upper, want: upper},
		{name: "a manifest without a platform", target: silent, want: silent},
		{name: "an index without platforms", target: l.index([2]string{arm}, [2]string{amd}), want: amd},
		{name: "an index without platforms, with an image for another platform", target: l.index([2]string{arm}), others: "[linux/arm64/v8]"},
		{name: "an index that states the wrong platform for an image", target: l.index([2]string{arm, said(isAMD64)}), others: "[linux/arm64/v8]"},
		{name: "an index with an image without a platform, which containerd does not start", target: l.index([2]string{silent})},
		{name: "an index of variants", target: l.index([2]string{amd, said(isAMD64 + `,"variant":"v3"`)}, [2]string{upper, said(isAMD64)}), want: upper},
		{name: "an attestation first", target: l.index([2]string{attests}, [2]string{amd, said(isAMD64)}), want: amd},
		{name: "an attestation with an unknown platform", target: l.index([2]string{attests, said(`"os":"unknown","architecture":"unknown"`)}, [2]string{amd}), want: amd},
		{name: "only an attestation", target: l.index([2]string{attests})},
		{name: "an artifact beside an image", target: l.index([2]string{artifact}, [2]string{amd}), want: amd},
		{name: "an artifact", target: l.index([2]string{artifact}), want: artifact},
		{name: "an index in an index", target: l.index([2]string{l.index([2]string{arm})}, [2]string{l.index([2]string{amd})}), want: amd},
		{name: "a missing manifest before the right one", target: l.index([2]string{lost}, [2]string{amd}), want: amd},
		{name: "only a missing manifest", target: l.index([2]string{lost, said(isAMD64)}), fails: fs.ErrNotExist},
		{name: "a missing configuration", target: unconfigured, fails: fs.ErrNotExist},
		{name: "a missing target", target: lost, fails: fs.ErrNotExist},
	} {
		w := walk{read: l.read, configs: true}
		found, err := w.choose(ocispec.Descriptor{Digest: digest.Digest(c.target)}, 0)
		got := ""
		if found != nil {
			got = found.Digest.String()
		}
		if got != c.want || !errors.Is(err, c.fails) || (c.fails == nil) != (err == nil) {
			t.Errorf("%s: %q, %v; want %q, %v", c.name, got, err, c.want, c.fails)
		}
		if c.others != "" && fmt.Sprint(w.others) != c.others {
			t.Errorf("%s: others are %v, want %s", c.name, w.others, c.others)
		}
	}
	for name, text := range map[string]string{
		"no configuration": `{"schemaVersion":1,"fsLayers":[]}`, "no JSON": "no", "a list": "[]", "an empty object": "{}",
		"layers that are no list": `{"layers":{}}`, "layers of numbers": `{"layers":[1]}`,
	} {
		w := walk{read: l.read, configs: true}
		if found, err := w.choose(ocispec.Descriptor{Digest: digest.Digest(l.put(text))}, 0); err == nil {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

// endless returns a store in which every index names `width` further indexes, each with a new
// digest. It also returns the counter of reads.
func endless(width int) (texts, *int) {
	reads := 0
	return func(string) ([]byte, error) {
		reads++
		var m manifest
		for i := range width {
			m.Manifests = append(m.Manifests, ocispec.Descriptor{Digest: digest.FromString(fmt.Sprint(reads, i))})
		}
		return json.Marshal(m)
	}, &reads
}

// TestBounds: choose and grow stop at the limits, in stores with too many or too large documents.
func TestBounds(t *testing.T) {
	circle := func(string) ([]byte, error) { return []byte(`{"manifests":[{"digest":"sha256:again"}]}`), nil }
	deep, deepReads := endless(1)
	wide, wideReads := endless(100)
	flat := func(d string) ([]byte, error) { // an index with very many images for other machines
		if d != "sha256:top" {
			return []byte(`{"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:config"}}`), nil
		}
		return []byte(`{"manifests":[` + strings.Repeat(`{"digest":"sha256:other"},`, 2*maxManifests) + `{"digest":"sha256:last"}]}`), nil
	}
	long := func(string) ([]byte, error) { return []byte(`{"layers":[` + strings.Repeat(`{},`, 9000) + `{}]}`), nil }
	many := func(string) ([]byte, error) {
		return []byte(`{"layers":[` + strings.Repeat(`{},`, maxLayers) + `{}]}`), nil
	}
	heavy := func(d string) ([]byte, error) {
		if d == "sha256:top" {
			return []byte(`{"manifests":[` + strings.Repeat(`{"digest":"sha256:other"},`, 20) + `{}]}`), nil
		}
		return []byte(`{"manifests":[{"digest":"sha256:lost"}]}` + strings.Repeat(" ", maxManifest-100)), nil
	}
	for name, read := range map[string]texts{"circle": circle, "deep": deep, "wide": wide, "flat": flat, "long": long, "many layers": many, "heavy": heavy} {
		top := ocispec.Descriptor{Digest: "sha256:top"}
		if found, err := (&walk{read: read, configs: true}).choose(top, 0); !errors.Is(err, errBounds) {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
		// In these three stores, digests repeat. grow reads each digest only once, so it does not
		// exceed the limits.
		if name != "flat" && name != "heavy" && name != "circle" {
			if _, err := (&walk{read: read}).grow(map[string]ocispec.Descriptor{}, top, 0); !errors.Is(err, errBounds) {
				t.Errorf("%s: grow returns %v, want errBounds", name, err)
			}
		}
	}
	// choose and grow stop at the first index that is too deep.
	if most := 2 * (maxDepth + 1); *deepReads > most || *wideReads > most {
		t.Errorf("read %d and %d documents", *deepReads, *wideReads)
	}
}

// FuzzChoose: a walk of arbitrary documents ends, with or without an image.
func FuzzChoose(f *testing.F) {
	f.Add([]byte(anImage), []byte(smallConfig))
	f.Add([]byte(`{"manifests":[{"digest":"sha256:a"},{"digest":"sha256:b","platform":{"os":"linux","architecture":"amd64"}}]}`), []byte(anImage))
	f.Add([]byte(fromFlux), []byte(`{}`))
	f.Fuzz(func(t *testing.T, first, others []byte) {
		reads := 0
		read := func(d string) ([]byte, error) {
			reads++
			if d == "sha256:top" {
				return first, nil
			}
			return others, nil
		}
		top := ocispec.Descriptor{Digest: "sha256:top"}
		for _, configs := range []bool{false, true} {
			w := walk{read: read, configs: configs}
			if found, err := w.choose(top, 0); found != nil && err != nil {
				t.Errorf("choose returns the image %+v and the error %v", found, err)
			}
		}
		if _, err := (&walk{read: read}).grow(map[string]ocispec.Descriptor{}, top, 0); err != nil && !errors.Is(err, errBounds) {
			t.Error(err)
		}
		if reads > 3*(maxManifests+1) {
			t.Errorf("read %d documents", reads)
		}
	})
}
