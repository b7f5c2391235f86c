package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/mirror"
)

// registryFiles are the files, by their paths below paths.ContainerdHosts, that tell containerd how
// to ask registries: a folder for each registry that something is said about, and one for all
// others (containerd's docs/hosts.md). containerd reads them again for every pull. Where the
// machine has neighbours, their mirror is asked before all others. Registries that are mirrors of
// others are asked through gate, which gives up on one that does not answer
// (docs/decisions/0061-images-that-can-run.md).
func registryFiles(all []config.ImageRegistry, near, gate ownMirror) map[string][]byte {
	files := map[string][]byte{}
	for i, r := range all {
		if !r.CA.IsZero() {
			files[authorityFile(i)] = []byte(r.CA.PEM())
		}
	}
	var names []string
	for _, r := range all {
		if host, folder := r.Address.Host(); folder == "" {
			names = append(names, host)
		}
		for _, m := range r.Mirrors {
			names = append(names, string(m))
		}
	}
	if near.url != "" {
		names = append(names, string(config.AnyRegistry))
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		folder := name
		if name == string(config.AnyRegistry) {
			folder = "_default"
		}
		files[filepath.Join(folder, "hosts.toml")] = registryFile(name, all, near, gate)
	}
	return files
}

func authorityFile(i int) string { return fmt.Sprintf("authorities/%d.crt", i) }

// registryFile says whom containerd asks for the images of one registry, and last of all how the
// registry itself is asked.
func registryFile(name string, all []config.ImageRegistry, near, gate ownMirror) []byte {
	var own, mirrors bytes.Buffer
	if near.url != "" {
		fmt.Fprintf(&mirrors, "\n[host.%q]\ncapabilities = [\"pull\", \"resolve\"]\n[host.%q.header]\nAuthorization = %q\n", near.url, near.url, "Bearer "+near.token)
	}
	for i, r := range all {
		host, folder := r.Address.Host()
		url := "https://" + host
		if r.PlainHTTP {
			url = "http://" + host
		}
		if host == name && folder == "" {
			if host != "docker.io" { // whose registry has another name, which containerd knows
				fmt.Fprintf(&own, "server = %q\n", url)
			}
			asking(&own, "header", i, r)
			continue
		}
		if host == name || !slices.ContainsFunc(r.Mirrors, func(m config.RegistryName) bool { return string(m) == name || m == config.AnyRegistry }) {
			continue
		}
		url = gate.url + mirror.ProxyPath + r.Address.Repository()
		fmt.Fprintf(&mirrors, "\n[host.%q]\n", url)
		mirrors.WriteString("capabilities = [\"pull\", \"resolve\"]\noverride_path = true\n")
		if !r.CA.IsZero() { // for who issues the registry's tokens, whom containerd asks itself
			fmt.Fprintf(&mirrors, "ca = %q\n", "../"+authorityFile(i))
		}
		fmt.Fprintf(&mirrors, "[host.%q.header]\n%s = %q\n", url, mirror.ProxyHeader, gate.token)
		if r.Username != "" {
			fmt.Fprintf(&mirrors, "Authorization = %q\n", basic(r))
		}
	}
	return append(own.Bytes(), mirrors.Bytes()...)
}

// asking says who vouches for a registry, and who asks. The table of headers comes last: what
// follows a table belongs to it.
func asking(b *bytes.Buffer, header string, i int, r config.ImageRegistry) {
	if !r.CA.IsZero() {
		fmt.Fprintf(b, "ca = %q\n", "../"+authorityFile(i))
	}
	if r.Username != "" {
		fmt.Fprintf(b, "[%s]\nAuthorization = %q\n", header, basic(r))
	}
}

// basic is how a registry's user shows the password (RFC 7617).
func basic(r config.ImageRegistry) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(r.Username+":"+r.Password.Reveal()))
}

// hasMirrors says whether a registry is to be asked for the images of others.
func hasMirrors(all []config.ImageRegistry) bool {
	return slices.ContainsFunc(all, func(r config.ImageRegistry) bool { return len(r.Mirrors) > 0 })
}

// upstreams are the mirrors of the configuration, as those that requests are passed on to.
type upstreams struct {
	mu  sync.RWMutex
	all []upstream
}

type upstream struct {
	mirror.Upstream
	below string // what the paths of its requests begin with, HOST/v2/…, without a slash at the end
}

// set makes others of them. Connections to those from before end when they are idle.
func (u *upstreams) set(all []config.ImageRegistry) {
	var next []upstream
	for _, r := range all {
		if len(r.Mirrors) == 0 {
			continue
		}
		host, _ := r.Address.Host()
		scheme := "https"
		if r.PlainHTTP {
			scheme = "http"
		}
		next = append(next, upstream{below: r.Address.Repository(), Upstream: mirror.Upstream{
			Name: string(r.Address), URL: url.URL{Scheme: scheme, Host: host}, Client: &http.Client{Transport: mirrorTransport(r), CheckRedirect: secretly},
		}})
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all = next
}

// secretly follows no redirect that leaves TLS: a password would go with it.
func secretly(r *http.Request, via []*http.Request) error {
	const most = 10
	if len(via) >= most {
		return fmt.Errorf("redirects more than %d times", most)
	}
	if via[0].URL.Scheme == "https" && r.URL.Scheme != "https" {
		return fmt.Errorf("redirects to %s://%s, without TLS", r.URL.Scheme, r.URL.Host)
	}
	return nil
}

// mirrorTransport verifies a mirror as containerd does: by the public authorities and by the
// mirror's own.
func mirrorTransport(r config.ImageRegistry) *http.Transport {
	const idle, mostHeaders = 30 * time.Second, 64 << 10
	t := &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: idle, DisableCompression: true, MaxResponseHeaderBytes: mostHeaders}
	if !r.PlainHTTP {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool() // the system has none
		}
		for _, ca := range r.CA.Certificates() {
			pool.AddCert(ca.X509())
		}
		t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return t
}

// Upstream is mirror.Upstreams'. Of a registry and its folder the folder is meant.
func (u *upstreams) Upstream(path string) (found mirror.Upstream, ok bool) {
	u.mu.RLock()
	defer u.mu.RUnlock()
	longest := -1
	for _, one := range u.all {
		if strings.HasPrefix(path+"/", one.below+"/") && len(one.below) > longest {
			found, ok, longest = one.Upstream, true, len(one.below)
		}
	}
	return found, ok
}

// writeRegistries makes a folder hold these files and nothing else.
func writeRegistries(dir string, files map[string][]byte) error {
	for path, content := range files {
		file := filepath.Join(dir, path)
		if have, err := os.ReadFile(file); err == nil && bytes.Equal(have, content) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return fmt.Errorf("registries: cannot make folder: %w", err)
		}
		if err := renameio.WriteFile(file, content, 0o600); err != nil {
			return fmt.Errorf("registries: cannot write: %w", err)
		}
	}
	return tidyRegistries(dir, files)
}

// tidyRegistries removes what is not wanted. An empty folder goes, too: containerd asks nothing of
// "_default" where a registry has a folder.
func tidyRegistries(dir string, files map[string][]byte) error {
	wanted := map[string]bool{".": true}
	for path := range files {
		wanted[path], wanted[filepath.Dir(path)] = true, true
	}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil || wanted[name] {
			return err
		}
		if err := os.RemoveAll(path); err != nil || !entry.IsDir() {
			return err
		}
		return fs.SkipDir
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("registries: cannot remove what is no longer wanted: %w", err)
	}
	return nil
}
