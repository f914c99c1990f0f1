// A table holds six rows of n ints: running, decoding, n_pending, token, n_computed, slot_id.
// An answer holds its count in answer[0] and then four rows of n ints: index, token, position, slot_id.

__device__ __forceinline__ bool is_active(const int* table, int n, int i) {
    return i < n && table[i] != 0 && table[n + i] != 0 && table[2 * n + i] > 0;
}

// Choose the first `budget` active requests. One block of any number of whole warps, at most 32.
extern "C" __global__ void select_continuous(const int* table, int n, int budget, int* answer) {
    __shared__ int warp_base[33];
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int n_warps = blockDim.x >> 5;
    int* index = answer + 1;
    int n_found = 0;

    // Every thread sees the same n_found, so that all of them leave the loop together.
    for (int tile = 0; tile < n && n_found < budget; tile += blockDim.x) {
        const int i = tile + threadIdx.x;
        const bool active = is_active(table, n, i);
        const unsigned votes = __ballot_sync(0xffffffffu, active);
        if (lane == 0) warp_base[warp] = __popc(votes);
        __syncthreads();

        if (warp == 0) {
            const int own = lane < n_warps ? warp_base[lane] : 0;
            int sum = own;
            for (int step = 1; step < 32; step <<= 1) {
                const int below = __shfl_up_sync(0xffffffffu, sum, step);
                if (lane >= step) sum += below;
            }
            warp_base[lane] = sum - own;
            if (lane == 31) warp_base[32] = sum;
        }
        __syncthreads();

        const int place = n_found + warp_base[warp] + __popc(votes & ((1u << lane) - 1u));
        if (active && place < budget) index[place] = i;
        n_found += warp_base[32];
        __syncwarp();  // lane 0 writes the next votes only after its whole warp has read these sums
    }
    if (threadIdx.x == 0) answer[0] = n_found < budget ? n_found : budget;
}

// Gather what the batch needs of the chosen requests. Any grid.
extern "C" __global__ void gather_metadata(const int* table, int n, int* answer) {
    const int n_chosen = answer[0];
    const int* index = answer + 1;
    for (int k = blockIdx.x * blockDim.x + threadIdx.x; k < n_chosen; k += blockDim.x * gridDim.x) {
        const int i = index[k];
        answer[1 + n + k] = table[3 * n + i];
        answer[1 + 2 * n + k] = table[4 * n + i];
        answer[1 + 3 * n + k] = table[5 * n + i];
    }
}
