// Package swap reads the swap areas in use, and reads and sets zswap.
//
// zswap is a cache of compressed pages in memory, in front of the swap areas
// (Documentation/admin-guide/mm/zswap.rst). Its settings are kernel parameters.
//
// The package decides nothing and changes no swap area. machined/volumes does both, with the
// library go-blockdevice.
package swap

import (
	"fmt"
	"strconv"
	"strings"
)

// Area is a swap area in use.
type Area struct {
	Path string // "/dev/vdb1"; with the suffix " (deleted)" if the device was disconnected
	Size uint64 // bytes, without the header
	Used uint64 // bytes
}

// parseAreas parses /proc/swaps (mm/swapfile.c, swap_show). After a header, each line has the path
// of an area, its type, its size and used size in KiB, and its priority. Blanks in a path are octal
// escapes.
func parseAreas(text string) (areas []Area, err error) {
	for i, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if i == 0 {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 5 {
			return nil, fmt.Errorf("/proc/swaps: line %d has %d fields, 5 expected", i+1, len(fields))
		}
		size, err := strconv.ParseUint(fields[2], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("/proc/swaps: line %d: cannot parse size: %w", i+1, err)
		}
		used, err := strconv.ParseUint(fields[3], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("/proc/swaps: line %d: cannot parse used size: %w", i+1, err)
		}
		path := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(fields[0])
		areas = append(areas, Area{Path: path, Size: size << 10, Used: used << 10})
	}
	return areas, nil
}

// Zswap is the state of zswap.
type Zswap struct {
	Missing bool // the kernel has no zswap
	// Percent is the largest percentage of the memory for compressed pages; 0: zswap is off
	Percent int
	// Shrinker is true if the kernel writes cold pages to the area before the percentage is reached
	Shrinker bool
}

// Names of the kernel parameters of zswap.
const (
	zswapEnabled  = "enabled"
	zswapPercent  = "max_pool_percent"
	zswapShrinker = "shrinker_enabled"
)

// parseZswap returns the state of zswap from the values of its parameters.
func parseZswap(values map[string]string) (Zswap, error) {
	z := Zswap{Shrinker: values[zswapShrinker] == "Y"}
	if values[zswapEnabled] != "Y" {
		return z, nil
	}
	percent, err := strconv.Atoi(values[zswapPercent])
	if err != nil {
		return z, fmt.Errorf("zswap: cannot parse %s: %w", zswapPercent, err)
	}
	z.Percent = percent
	return z, nil
}

// parameter is a kernel parameter of zswap with its value.
type parameter struct{ name, value string }

// parameters returns the writes that set a percentage; 0 turns zswap off. The last write enables
// zswap, so zswap starts with all settings.
func parameters(percent int) []parameter {
	if percent == 0 {
		return []parameter{{zswapEnabled, "N"}}
	}
	return []parameter{{zswapPercent, strconv.Itoa(percent)}, {zswapShrinker, "Y"}, {zswapEnabled, "Y"}}
}
