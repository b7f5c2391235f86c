package images

import (
	"bytes"
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

	"github.com/orlop-os/orlop/machined/images/mirror"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/paths"
)

// ConfigureRegistries writes the registry files of containerd, and opens the mirror if a file needs
// the mirror. e says how registries are reached. ConfigureRegistries is not safe for concurrent
// use.
func (m *Manager) ConfigureRegistries(c *config.Config, e egress.Config) error {
	all := c.Machine.Spec.Registries
	var images, proxy localMirror
	if hasPeers(c) || hasMirrors(all) {
		local, localProxy, err := m.openMirror()
		if err != nil {
			return err
		}
		if hasPeers(c) {
			images = local
		}
		proxy = localProxy
	}
	if err := m.upstreams.set(all, e); err != nil {
		return err
	}
	return writeRegistries(paths.ContainerdHosts, registryFiles(all, e.CAs, images, proxy))
}

// registryFiles returns the files, by path below paths.ContainerdHosts, that configure containerd's
// access to registries: a directory for each configured registry, and a directory for all others
// (containerd's docs/hosts.md). containerd reads them at every pull. If the machine has peers with
// images, their mirror comes first. Registries that mirror others are called through proxy, which
// gives up on a registry that does not answer (docs/decisions/0070-mirror-timeout.md). siteCAs are
// trusted for every registry, in PEM; empty for none.
func registryFiles(all []config.ImageRegistry, siteCAs string, images, proxy localMirror) map[string][]byte {
	files := map[string][]byte{}
	if siteCAs != "" {
		files[siteFile] = []byte(siteCAs)
	}
	for i, r := range all {
		if !r.CA.IsZero() {
			files[authorityFile(i)] = []byte(r.CA.PEM())
		}
	}
	var names []string
	for _, r := range all {
		if host, dir := r.Address.Host(); dir == "" {
			names = append(names, host)
		}
		for _, m := range r.Mirrors {
			names = append(names, string(m))
		}
	}
	if images.url != "" || siteCAs != "" {
		names = append(names, string(config.AnyRegistry))
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		dir := name
		if name == string(config.AnyRegistry) {
			dir = "_default"
		}
		files[filepath.Join(dir, "hosts.toml")] = registryFile(name, all, siteCAs != "", images, proxy)
	}
	return files
}

func authorityFile(i int) string { return fmt.Sprintf("authorities/%d.crt", i) }

// siteFile holds the CAs of the site.
const siteFile = "authorities/site.crt"

// caLine returns the line with the CAs of registry i; empty if only the public CAs are trusted.
// With the line, containerd tries TLS first for any host.
func caLine(i int, r config.ImageRegistry, site bool) string {
	var list []string
	if !r.CA.IsZero() {
		list = append(list, fmt.Sprintf("%q", "../"+authorityFile(i)))
	}
	if site && !r.PlainHTTP {
		list = append(list, fmt.Sprintf("%q", "../"+siteFile))
	}
	switch len(list) {
	case 0:
		return ""
	case 1:
		return "ca = " + list[0] + "\n"
	}
	return "ca = [" + strings.Join(list, ", ") + "]\n"
}

// registryFile lists the hosts from which containerd pulls the images of a registry, and last the
// access to the registry itself. site says whether the site has CAs.
func registryFile(name string, all []config.ImageRegistry, site bool, images, proxy localMirror) []byte {
	var own, mirrors bytes.Buffer
	unnamed := true // the registry itself has no entry
	if images.url != "" {
		fmt.Fprintf(&mirrors, "\n[host.%q]\ncapabilities = [\"pull\", \"resolve\"]\n[host.%q.header]\nAuthorization = %q\n", images.url, images.url, "Bearer "+images.token)
	}
	for i, r := range all {
		host, dir := r.Address.Host()
		url := "https://" + host
		if r.PlainHTTP {
			url = "http://" + host
		}
		if host == name && dir == "" {
			if host != "docker.io" { // docker.io has another host name, which containerd knows
				fmt.Fprintf(&own, "server = %q\n", url)
			}
			writeAccess(&own, i, r, site)
			unnamed = false
			continue
		}
		if host == name || !slices.ContainsFunc(r.Mirrors, func(m config.RegistryName) bool { return string(m) == name || m == config.AnyRegistry }) {
			continue
		}
		url = proxy.url + mirror.ProxyPath + r.Address.Repository()
		fmt.Fprintf(&mirrors, "\n[host.%q]\n", url)
		mirrors.WriteString("capabilities = [\"pull\", \"resolve\"]\noverride_path = true\n")
		// containerd calls the issuer of the registry's tokens without the proxy, and verifies it
		// with these CAs
		mirrors.WriteString(caLine(i, r, site))
		fmt.Fprintf(&mirrors, "[host.%q.header]\n%s = %q\n", url, mirror.ProxyHeader, proxy.token)
		if r.Username != "" {
			fmt.Fprintf(&mirrors, "Authorization = %q\n", basic(r))
		}
	}
	if unnamed {
		own.WriteString(caLine(0, config.ImageRegistry{}, site))
	}
	return append(own.Bytes(), mirrors.Bytes()...)
}

// writeAccess writes the CAs and the credentials of a registry. The table of headers comes last:
// the lines after a table belong to it.
func writeAccess(b *bytes.Buffer, i int, r config.ImageRegistry, site bool) {
	b.WriteString(caLine(i, r, site))
	if r.Username != "" {
		fmt.Fprintf(b, "[header]\nAuthorization = %q\n", basic(r))
	}
}

// basic returns the credentials of a registry's user.
func basic(r config.ImageRegistry) string { return egress.Basic(r.Username, r.Password.Reveal()) }

// hasMirrors reports whether a registry mirrors others.
func hasMirrors(all []config.ImageRegistry) bool {
	return slices.ContainsFunc(all, func(r config.ImageRegistry) bool { return len(r.Mirrors) > 0 })
}

// upstreams are the configured mirrors to which requests are proxied.
type upstreams struct {
	mu  sync.RWMutex
	all []upstream
}

type upstream struct {
	mirror.Upstream
	prefix string // prefix of the request paths, HOST/v2/…, without a trailing slash
}

// set replaces the mirrors. Connections to the former mirrors end when they are idle.
func (u *upstreams) set(all []config.ImageRegistry, e egress.Config) error {
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
		transport, err := mirrorTransport(r, e)
		if err != nil {
			return fmt.Errorf("registry %s: %w", r.Address, err)
		}
		next = append(next, upstream{prefix: r.Address.Repository(), Upstream: mirror.Upstream{
			Name: string(r.Address), URL: url.URL{Scheme: scheme, Host: host}, Client: &http.Client{Transport: transport, CheckRedirect: checkRedirect},
		}})
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all = next
	return nil
}

// checkRedirect rejects a redirect away from TLS, which would reveal the password.
func checkRedirect(r *http.Request, via []*http.Request) error {
	const most = 10
	if len(via) >= most {
		return fmt.Errorf("redirects more than %d times", most)
	}
	if via[0].URL.Scheme == "https" && r.URL.Scheme != "https" {
		return fmt.Errorf("redirects to %s://%s, without TLS", r.URL.Scheme, r.URL.Host)
	}
	return nil
}

// mirrorTransport verifies a mirror as containerd does: with the public CAs, the CAs of the site
// and the CAs of the mirror itself.
func mirrorTransport(r config.ImageRegistry, e egress.Config) (*http.Transport, error) {
	const idle, mostHeaders = 30 * time.Second, 64 << 10
	t := &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: idle, DisableCompression: true, MaxResponseHeaderBytes: mostHeaders}
	roots, err := e.Roots(r.CA.PEM(), true)
	if err != nil {
		return nil, err
	}
	return t, e.Complete(t, roots)
}

// Upstream implements mirror.Upstreams. The longest matching prefix wins.
func (u *upstreams) Upstream(path string) (found mirror.Upstream, ok bool) {
	u.mu.RLock()
	defer u.mu.RUnlock()
	longest := -1
	for _, one := range u.all {
		if strings.HasPrefix(path+"/", one.prefix+"/") && len(one.prefix) > longest {
			found, ok, longest = one.Upstream, true, len(one.prefix)
		}
	}
	return found, ok
}

// writeRegistries makes these files the only content of a directory.
func writeRegistries(dir string, files map[string][]byte) error {
	for path, content := range files {
		file := filepath.Join(dir, path)
		if have, err := os.ReadFile(file); err == nil && bytes.Equal(have, content) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return fmt.Errorf("registries: cannot create directory: %w", err)
		}
		if err := renameio.WriteFile(file, content, 0o600); err != nil {
			return fmt.Errorf("registries: cannot write: %w", err)
		}
	}
	return tidyRegistries(dir, files)
}

// tidyRegistries removes unwanted files. It removes an empty directory too, because containerd
// ignores "_default" for a registry that has a directory.
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
		return fmt.Errorf("registries: cannot remove unwanted files: %w", err)
	}
	return nil
}
