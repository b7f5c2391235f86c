package swap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// zswapDir is the directory with one file per parameter of zswap.
const zswapDir = "/sys/module/zswap/parameters"

// Areas returns the swap areas in use; none if the kernel has no swap.
func Areas() ([]Area, error) {
	text, err := os.ReadFile("/proc/swaps")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseAreas(string(text))
}

// ReadZswap reads the state of zswap.
func ReadZswap() (Zswap, error) {
	values := map[string]string{}
	for _, name := range []string{zswapEnabled, zswapPercent, zswapShrinker} {
		text, err := os.ReadFile(filepath.Join(zswapDir, name))
		if errors.Is(err, fs.ErrNotExist) {
			return Zswap{Missing: true}, nil
		}
		if err != nil {
			return Zswap{}, fmt.Errorf("zswap: cannot read: %w", err)
		}
		values[name] = strings.TrimSpace(string(text))
	}
	return parseZswap(values)
}

// SetZswap sets the percentage of the memory for compressed pages; 0 turns zswap off. Pages that
// are in zswap then stay there until their next use.
func SetZswap(percent int) error {
	for _, p := range parameters(percent) {
		if err := os.WriteFile(filepath.Join(zswapDir, p.name), []byte(p.value), 0); err != nil {
			return fmt.Errorf("zswap: cannot set %s to %s: %w", p.name, p.value, err)
		}
	}
	return nil
}
